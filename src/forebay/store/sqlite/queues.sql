-- Statements about queues, classes, gates, schedules and the head.

-- name: head
-- The counters of the whole store.
SELECT next_id, next_join, dealers, last_at, half, filled, ledger_first, ledger_next, ledger_bytes, ledger_on,
    ledger_keep, ledger_keep_bytes
FROM head WHERE one = 1;

-- name: put_head
-- The counters after a call.
UPDATE head
SET next_id = ?, next_join = ?, dealers = ?, last_at = ?, half = ?, filled = ?, ledger_first = ?, ledger_next = ?,
    ledger_bytes = ?, ledger_on = ?, ledger_keep = ?, ledger_keep_bytes = ?
WHERE one = 1;

-- name: keep_record
-- What a call did, at the next place of the ledger.
INSERT INTO ledger VALUES (?, ?, ?);

-- name: records
-- The ledger behind an entry.
SELECT entry, record FROM ledger WHERE entry > ?1 ORDER BY entry LIMIT ?2;

-- name: record_sizes
-- The ages and sizes of the records from an entry on.
SELECT at, length(record) FROM ledger WHERE entry >= ?1 ORDER BY entry LIMIT ?2;

-- name: drop_records
-- The front of the ledger is given up.
DELETE FROM ledger WHERE entry < ?;

-- name: last_at
-- The last instant that any process has written.
SELECT last_at FROM head WHERE one = 1;

-- name: pass_time
-- A transaction of somebody else's writes at this instant.
UPDATE head SET last_at = max(last_at, ?) WHERE one = 1;

-- name: queue
-- One queue: its spec, its pause, its counts.
SELECT spec, paused_until, classed, keys, waiting, ready, running, done, dead, cancelled FROM queue WHERE name = ?;

-- name: queues
-- Queues that are configured, paused, or hold jobs.
SELECT name FROM queue
WHERE spec IS NOT NULL OR paused_until IS NOT NULL OR waiting + ready + running + done + dead + cancelled > 0
ORDER BY name;

-- name: queue_names
-- The same by pages: after a name, from a prefix on, before what follows it.
SELECT name FROM queue
WHERE name > ? AND name >= ? AND name < ?
    AND (spec IS NOT NULL OR paused_until IS NOT NULL OR waiting + ready + running + done + dead + cancelled > 0)
ORDER BY name LIMIT ?;

-- name: totals
-- All queues together.
SELECT count(*), coalesce(sum(waiting), 0), coalesce(sum(ready), 0), coalesce(sum(running), 0), coalesce(sum(done), 0),
    coalesce(sum(dead), 0), coalesce(sum(cancelled), 0)
FROM queue
WHERE spec IS NOT NULL OR paused_until IS NOT NULL OR waiting + ready + running + done + dead + cancelled > 0;

-- name: deepest
-- Queues that hold most.
SELECT name FROM queue
WHERE spec IS NOT NULL OR paused_until IS NOT NULL OR waiting + ready + running + done + dead + cancelled > 0
ORDER BY waiting + ready + running DESC, dead DESC, name LIMIT ?;

-- name: put_queue
-- One queue after a call.
INSERT OR REPLACE INTO queue
    (name, spec, paused_until, dead_most, classed, keys, waiting, ready, running, done, dead, cancelled)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: specs
-- Every configuration.
SELECT spec FROM queue WHERE spec IS NOT NULL ORDER BY name;

-- name: expired_keys
-- Keys of a queue whose window has passed and that are not swept yet.
SELECT count(*) FROM key INDEXED BY key_until WHERE until <= ?1 AND queue = ?2;

-- name: free_keys
-- Keys of a queue that were taken by the state of their job, and are not any more; states as bits.
SELECT count(*) FROM key INDEXED BY key_until WHERE until = ?1 AND queue = ?2
    AND NOT EXISTS (SELECT 1 FROM job WHERE id = key.job_id AND (?3 >> state) & 1);

-- name: class_ready
-- How many jobs a class could give.
SELECT ready FROM class WHERE queue = ?1 AND name = ?2;

-- name: class_moved
-- More or fewer ready jobs of a class; a class that had none joins.
INSERT INTO class (queue, name, ready, joined) VALUES (?, ?, ?, ?)
ON CONFLICT (queue, name) DO UPDATE SET ready = ready + excluded.ready;

-- name: class_left
-- A class without work loses its place, unless a rate lets somebody of it start.
DELETE FROM class WHERE queue = ?1 AND name = ?2 AND ready <= 0
    AND NOT EXISTS (SELECT 1 FROM pace INDEXED BY pace_start WHERE open = 1 AND queue = ?1 AND cls = ?2);

-- name: drop_idle
-- So do classes for which a rate was open; so many are looked at.
DELETE FROM class WHERE (queue, name) IN (
    SELECT idle.queue, idle.name FROM (SELECT queue, name FROM class INDEXED BY class_idle WHERE ready <= 0 LIMIT ?) AS idle
    WHERE NOT EXISTS (SELECT 1 FROM pace INDEXED BY pace_start WHERE open = 1 AND queue = idle.queue AND cls = idle.name)
);

-- name: class_starts
-- Whether a rate lets somebody of a class start.
SELECT EXISTS (SELECT 1 FROM pace INDEXED BY pace_start WHERE open = 1 AND queue = ?1 AND cls = ?2);

-- name: joined
-- Classes that joined after the last one seen, in the order of arrival.
SELECT name, joined FROM class INDEXED BY class_joined WHERE queue = ?1 AND joined > ?2 ORDER BY joined;

-- name: look
-- Gates: their slots, holders, waiters, lines, the operator's numbers, what a rate has, the heads of their lines,
-- and how many of those in it are dead.
SELECT n.value, coalesce(g.slots, 0), coalesce(g.held, 0), coalesce(g.parked, 0), coalesce(g.standing, 0),
    coalesce(g.opened, 0), (SELECT slots FROM gate_limit WHERE name = n.value), coalesce(g.step, 0), coalesce(g.tide, 0),
    CASE WHEN g.standing > 0 THEN (SELECT min(id) FROM line WHERE gate = n.value) END, g.name IS NOT NULL,
    coalesce(g.fallen, 0)
FROM json_each(?1) AS n LEFT JOIN gate AS g ON g.name = n.value;

-- name: gates
-- Gates that are in use: the slots that hold now, holders, waiters. No number lets two in where a line says who is next.
SELECT g.name, CASE WHEN g.standing > 0 THEN min(1, coalesce(l.slots, g.slots)) ELSE coalesce(l.slots, g.slots) END,
    g.held, g.parked, l.slots
FROM gate AS g LEFT JOIN gate_limit AS l ON l.name = g.name
WHERE g.name >= max(?1, ?2) AND g.name < ?3 AND g.name <> ?1 AND (g.held > 0 OR g.parked > 0 OR g.standing > 0)
ORDER BY g.name LIMIT ?4;

-- name: gate_limit
-- The operator's own number of slots.
SELECT slots FROM gate_limit WHERE name = ?;

-- name: set_gate_limit
-- An operator gives a gate another number.
INSERT OR REPLACE INTO gate_limit VALUES (?, ?);

-- name: drop_gate_limit
-- Back to the stamped number.
DELETE FROM gate_limit WHERE name = ?;

-- name: put_gate
-- Gates after a call.
INSERT OR REPLACE INTO gate (name, slots, held, parked, standing, opened, step, tide, fallen)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_gate
-- Nobody holds it, waits at it or stands in line: a million subjects leave nothing behind.
DELETE FROM gate WHERE name = ?;

-- name: opened
-- Gates that may have room for someone parked.
SELECT name FROM gate INDEXED BY gate_opened WHERE opened = 1 ORDER BY name LIMIT ?;

-- name: drop_ebbed
-- Rates that owe nothing any more and that nobody waits at.
DELETE FROM gate WHERE name IN (
    SELECT name FROM gate INDEXED BY gate_ebbed WHERE step > 0 AND parked = 0 AND tide <= ?1 LIMIT ?2
);

-- name: first_of
-- Who of a queue is the first at a rate.
SELECT id, queue, cls, state, rank, due_at, gates, gate FROM job INDEXED BY job_paced
WHERE gate >= 'rate/' AND gate < 'rate0' AND gate = ?1 AND queue = ?2
ORDER BY rank, id LIMIT 1;

-- name: first_of_class
-- Who of a class is the first at a gate where classes take turns.
SELECT id, queue, cls, state, rank, due_at, gates, gate FROM job INDEXED BY job_turns
WHERE gate IS NOT NULL AND turns = 1 AND gate = ?1 AND queue = ?2 AND cls = ?3
ORDER BY rank, id LIMIT 1;

-- name: join_turns
-- A class that has no place in a ring comes last.
INSERT OR IGNORE INTO turn
VALUES (?1, ?2, ?3, (SELECT coalesce(max(place), 0) + 1 FROM turn INDEXED BY turn_place WHERE gate = ?1 AND queue = ?2), 0);

-- name: whose_turn
-- The class at the head of a ring.
SELECT cls FROM turn INDEXED BY turn_place WHERE gate = ?1 AND queue = ?2 ORDER BY place LIMIT 1;

-- name: rest_of_turn
-- What a class may still take.
SELECT rest FROM turn WHERE gate = ?1 AND queue = ?2 AND cls = ?3;

-- name: go_on
-- Its turn goes on.
UPDATE turn SET rest = ? WHERE gate = ? AND queue = ? AND cls = ?;

-- name: end_turn
-- Its turn is over.
UPDATE turn SET rest = 0, place = (SELECT max(place) + 1 FROM turn INDEXED BY turn_place WHERE gate = ? AND queue = ?)
WHERE gate = ? AND queue = ? AND cls = ?;

-- name: leave_turns
-- A class of which nobody is parked there loses its place.
DELETE FROM turn WHERE gate = ?1 AND queue = ?2 AND cls = ?3;

-- name: drop_turns
-- Nobody is parked there.
DELETE FROM turn WHERE gate = ?;

-- name: parked_at
-- The first of those that are parked at a gate without an order; who has expired is left out.
SELECT id, queue, cls, state, rank, due_at, gates, gate FROM job INDEXED BY job_parked
WHERE gate IS NOT NULL AND gate = ?1 AND (expires_at IS NULL OR expires_at > ?2)
ORDER BY rank, id LIMIT ?3;

-- name: pass
-- A job leaves the gate where it is parked, with the stamps of the others.
UPDATE job SET gates = ?2, gate = NULL WHERE id = ?1;

-- name: parked_before
-- Who is parked at a gate before a job, so many at most.
SELECT id FROM job INDEXED BY job_parked
WHERE gate IS NOT NULL AND gate = ?1 AND rank <= ?2 AND (rank, id) < (?2, ?3) LIMIT ?4;

-- name: class_before
-- Who of its class is parked before a job at a gate where classes take turns, so many at most.
SELECT id FROM job INDEXED BY job_turns
WHERE gate IS NOT NULL AND turns = 1 AND gate = ?1 AND queue = ?2 AND cls = ?3 AND rank <= ?4 AND (rank, id) < (?4, ?5)
LIMIT ?6;

-- name: standing_before
-- Who is parked before a job in its line, so many at most.
SELECT l.id FROM line AS l CROSS JOIN job AS j ON j.id = l.id WHERE l.gate = ?1 AND l.id < ?2 AND j.gate = ?1 LIMIT ?3;

-- name: ready_before
-- Who of a class is ready before a job, so many at most.
SELECT id FROM job INDEXED BY job_ready
WHERE state = 1 AND queue = ?1 AND cls = ?2 AND rank <= ?3 AND (rank, id) < (?3, ?4) LIMIT ?5;

-- name: oldest_parked
-- Since when the one who has waited longest at a gate of a queue has been due.
SELECT min(due_at) FROM job INDEXED BY job_held_up WHERE gate IS NOT NULL AND queue = ?;

-- name: blocked_lines
-- Lines of a queue whose head is dead; of those in which some dead stand, so many are looked at.
SELECT count(*) FROM (
    SELECT name FROM gate INDEXED BY gate_fallen
    WHERE fallen > 0 AND name >= 'order/' || ?1 || '/' AND name < 'order/' || ?1 || '0' LIMIT ?2
) AS fell
WHERE (SELECT state FROM job WHERE id = (SELECT min(id) FROM line WHERE gate = fell.name)) = 4;

-- name: pace
-- When a rate lets the first of a queue in.
SELECT opens_at FROM pace WHERE queue = ?1 AND gate = ?2;

-- name: paced
-- The queues of those who are parked at a rate.
SELECT queue FROM pace INDEXED BY pace_gate WHERE gate = ?;

-- name: put_pace
-- Who of a queue is the first at a rate, and when it is let in.
INSERT OR REPLACE INTO pace (queue, gate, opens_at, rank, id, open, cls) VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: drop_pace
-- Nobody of the queue is parked there.
DELETE FROM pace WHERE queue = ?1 AND gate = ?2;

-- name: opening
-- Rates whose time has come are open; where they are.
UPDATE pace SET open = 1 WHERE (queue, gate) IN (
    SELECT queue, gate FROM pace INDEXED BY pace_later WHERE open = 0 AND opens_at IS NOT NULL AND opens_at <= ?1
    ORDER BY opens_at LIMIT ?2
) RETURNING queue, cls;

-- name: next_start
-- The first of those whom the rates of a queue let in.
SELECT j.id, j.queue, j.cls, j.state, j.rank, j.due_at, j.gates, j.gate
FROM pace AS p INDEXED BY pace_open JOIN job AS j ON j.id = p.id
WHERE p.open = 1 AND p.queue = ?1
ORDER BY p.rank, p.id LIMIT 1;

-- name: next_start_of
-- The same, of one class.
SELECT j.id, j.queue, j.cls, j.state, j.rank, j.due_at, j.gates, j.gate
FROM pace AS p INDEXED BY pace_start JOIN job AS j ON j.id = p.id
WHERE p.open = 1 AND p.queue = ?1 AND p.cls = ?2
ORDER BY p.rank, p.id LIMIT 1;

-- name: start_at
-- Whether a claim of a queue finds somebody whom a rate lets in, and when it will.
SELECT EXISTS (SELECT 1 FROM pace INDEXED BY pace_open WHERE open = 1 AND queue = ?1),
    (SELECT min(opens_at) FROM pace INDEXED BY pace_next WHERE open = 0 AND opens_at IS NOT NULL AND queue = ?1);

-- name: next_opening
-- When the next rate lets somebody in.
SELECT min(opens_at) FROM pace INDEXED BY pace_later WHERE open = 0 AND opens_at IS NOT NULL;

-- name: enter_line
-- A job stands in the line of an ordered gate.
INSERT OR IGNORE INTO line VALUES (?, ?);

-- name: line_up
-- New jobs stand in their lines.
INSERT INTO line VALUES (?, ?);

-- name: leave_line
-- A job leaves it.
DELETE FROM line WHERE gate = ?1 AND id = ?2;

-- name: head_of_line
-- The smallest unfinished id.
SELECT min(id) FROM line WHERE gate = ?;

-- name: schedules
-- Every schedule.
SELECT body, last_at FROM schedule WHERE body IS NOT NULL ORDER BY name;

-- name: schedule
-- One schedule and its last tick.
SELECT body, last_at FROM schedule WHERE name = ?;

-- name: put_schedule
-- Create or edit; the last tick is not ours to change.
INSERT INTO schedule (name, body, last_at) VALUES (?1, ?2, NULL) ON CONFLICT (name) DO UPDATE SET body = ?2;

-- name: drop_schedule
-- Only the last tick stays.
UPDATE schedule SET body = NULL WHERE name = ? AND body IS NOT NULL;

-- name: tick
-- A slot is taken.
UPDATE schedule SET body = ?2, last_at = ?3 WHERE name = ?1;
