-- Statements about queues, lanes, classes, gates, schedules and the head.

-- name: head
-- The counters of the whole store.
SELECT next_id, last_at, half, filled, ledger_first, ledger_next, ledger_bytes, ledger_on,
    ledger_keep, ledger_keep_bytes
FROM head WHERE one = 1;

-- name: put_head
-- The counters after a call.
UPDATE head
SET next_id = ?, last_at = ?, half = ?, filled = ?, ledger_first = ?, ledger_next = ?,
    ledger_bytes = ?, ledger_on = ?, ledger_keep = ?, ledger_keep_bytes = ?
WHERE one = 1;

-- name: keep_record
-- What a call did, at the next place of the ledger.
INSERT INTO ledger (entry, at, record) VALUES (?, ?, ?);

-- name: records
-- The records of the ledger after an entry.
SELECT entry, record FROM ledger WHERE entry > ?1 ORDER BY entry LIMIT ?2;

-- name: record_sizes
-- The ages and sizes of the records from an entry on.
SELECT at, length(record) FROM ledger WHERE entry >= ?1 ORDER BY entry LIMIT ?2;

-- name: drop_records
-- The oldest records of the ledger are deleted.
DELETE FROM ledger WHERE entry < ?;

-- name: last_at
-- The last instant that any process has written.
SELECT last_at FROM head WHERE one = 1;

-- name: pass_time
-- Another process's transaction writes at this instant.
UPDATE head SET last_at = max(last_at, ?) WHERE one = 1;

-- name: queue
-- One queue: its spec, its pause, its counts.
SELECT spec, paused_until, laned, turn, keys, waiting, ready, running, done, dead, cancelled FROM queue WHERE name = ?;

-- name: depth
-- What counts against the capacity of a queue.
SELECT waiting + ready + running FROM queue WHERE name = ?;

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
-- The queues with the most unfinished jobs.
SELECT name FROM queue
WHERE spec IS NOT NULL OR paused_until IS NOT NULL OR waiting + ready + running + done + dead + cancelled > 0
ORDER BY waiting + ready + running DESC, dead DESC, name LIMIT ?;

-- name: put_queue
-- One queue after a call.
INSERT OR REPLACE INTO queue
    (name, spec, paused_until, max_dead, paced, laned, turn, keys, waiting, ready, running, done, dead, cancelled)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: paced
-- Queues with ready jobs that a rate holds as a whole.
SELECT name FROM queue INDEXED BY queue_paced WHERE paced = 1 AND ready > 0 LIMIT ?;

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

-- name: gates
-- Gates that are in use or have an operator's number.
SELECT name, queue, used, given FROM gate
WHERE name >= max(?1, ?2) AND name < ?3 AND name <> ?1 AND (used > 0 OR tat > ?5 OR given IS NOT NULL)
ORDER BY name LIMIT ?4;

-- name: gate_states
-- Those of these gates that are known.
SELECT name, used, tat, queue, given, wake_at FROM gate WHERE name IN (SELECT value FROM json_each(?1));

-- name: put_gate
-- A gate after a call.
INSERT INTO gate (name, used, tat, queue, given, wake_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (name) DO UPDATE SET used = ?2, tat = ?3, queue = ?4, given = ?5, wake_at = ?6;

-- name: drop_gate
-- A gate that nothing uses: a million subjects leave nothing behind.
DELETE FROM gate WHERE name = ?;

-- name: drop_paid
-- Rates whose starts are all paid.
DELETE FROM gate WHERE name IN (
    SELECT name FROM gate INDEXED BY gate_unused_rate WHERE used = 0 AND given IS NULL AND wake_at IS NULL AND tat <= ?1 LIMIT ?2
);

-- name: opened_rates
-- Rates whose time has come for lanes that are parked there.
SELECT name FROM gate INDEXED BY gate_waking WHERE wake_at IS NOT NULL AND wake_at <= ?1 ORDER BY wake_at LIMIT ?2;

-- name: next_opening
-- When the next rate opens for a lane that is parked there.
SELECT wake_at FROM gate INDEXED BY gate_waking
WHERE wake_at IS NOT NULL AND EXISTS (SELECT 1 FROM lane INDEXED BY lane_parked WHERE at = gate.name)
ORDER BY wake_at LIMIT 1;

-- name: add_lane
-- A lane has a ready job, which may be the first of it.
INSERT INTO lane (queue, lane, cls, rank, id, turn, at) VALUES (?1, ?2, ?3, ?4, ?5, 0, NULL)
ON CONFLICT (queue, lane) DO UPDATE SET rank = ?4, id = ?5 WHERE (?4, ?5) < (rank, id);

-- name: lanes_named
-- The first jobs of these lanes of a queue, and where they are parked.
SELECT lane, rank, id, at FROM lane WHERE queue = ?1 AND lane IN (SELECT value FROM json_each(?2));

-- name: lead_lane
-- A lane has another head.
UPDATE lane SET rank = ?3, id = ?4 WHERE queue = ?1 AND lane = ?2 RETURNING at;

-- name: put_lane
-- A lane after a claim.
UPDATE lane SET rank = ?3, id = ?4, turn = ?5, at = ?6 WHERE queue = ?1 AND lane = ?2;

-- name: drop_lane
-- A lane without ready jobs.
DELETE FROM lane WHERE queue = ?1 AND lane = ?2;

-- name: open_lanes
-- Open lanes of a class behind a place, first jobs first.
SELECT rank, id, lane FROM lane INDEXED BY lane_open
WHERE at IS NULL AND queue = ?1 AND cls = ?2 AND (rank, id) > (?3, ?4)
ORDER BY rank, id LIMIT ?5;

-- name: lanes_of_classes
-- The first open lanes of each of these classes, up to a limit.
SELECT l.cls, l.rank, l.id, l.lane FROM json_each(?1) AS c CROSS JOIN lane AS l ON l.queue = ?2 AND l.lane IN (
    SELECT lane FROM lane INDEXED BY lane_open
    WHERE at IS NULL AND queue = ?2 AND cls = c.value
    ORDER BY rank, id LIMIT ?3
);

-- name: parked_lanes
-- Lanes of a queue that are parked at a gate behind a place, in the order in which it has room for them.
SELECT turn, rank, id, lane, cls FROM lane INDEXED BY lane_parked
WHERE at = ?1 AND queue = ?2 AND (turn, rank, id) > (?3, ?4, ?5)
ORDER BY turn, rank, id LIMIT ?6;

-- name: parked_of_class
-- Parked lanes of a class, up to a limit.
SELECT lane, rank, id, turn, at FROM lane INDEXED BY lane_held WHERE at IS NOT NULL AND queue = ?1 AND cls = ?2 LIMIT ?3;

-- name: gates_with_parked
-- Those of these gates at which lanes of a queue are parked.
SELECT n.value FROM json_each(?1) AS n
WHERE EXISTS (SELECT 1 FROM lane INDEXED BY lane_parked WHERE at = n.value AND queue = ?2);

-- name: gates_in_demand
-- Those of these gates at which lanes are parked.
SELECT n.value FROM json_each(?1) AS n
WHERE EXISTS (SELECT 1 FROM lane INDEXED BY lane_parked WHERE at = n.value);

-- name: queues_parked_at
-- The queues of lanes that are parked at a gate.
WITH RECURSIVE parked (queue) AS (
    SELECT min(queue) FROM lane INDEXED BY lane_parked WHERE at = ?1
    UNION ALL
    SELECT (SELECT min(queue) FROM lane INDEXED BY lane_parked WHERE at = ?1 AND queue > parked.queue)
    FROM parked WHERE queue IS NOT NULL
)
SELECT queue FROM parked WHERE queue IS NOT NULL;

-- name: open_all_lanes
-- Lanes of a queue whose gates have changed: the next claim evaluates them.
UPDATE lane SET at = NULL, turn = 0 WHERE queue = ?1 AND at IS NOT NULL;

-- name: held_jobs
-- Ready jobs in lanes of a queue that are parked at gates which have no room, up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM lane AS l INDEXED BY lane_held CROSS JOIN job AS j INDEXED BY job_ready
        ON j.state = 1 AND j.queue = l.queue AND j.lane = l.lane
    WHERE l.at IS NOT NULL AND l.queue = ?1
        AND NOT EXISTS (SELECT 1 FROM woken AS w WHERE w.queue = l.queue AND w.gate = l.at)
        AND NOT EXISTS (SELECT 1 FROM gate AS g WHERE g.name = l.at AND g.wake_at <= ?3)
    LIMIT ?2
) AS held;

-- name: wake
-- A gate may have room for a parked lane of a queue.
INSERT OR IGNORE INTO woken (queue, gate) VALUES (?, ?);

-- name: woken
-- Gates that may have room for lanes of a queue that are parked there.
SELECT gate FROM woken WHERE queue = ?1 LIMIT ?2;

-- name: sleep_again
-- A gate has no room for the parked lanes of a queue.
DELETE FROM woken WHERE queue = ? AND gate = ?;

-- name: sleep_unused
-- No lane of a queue is parked at a gate any more.
DELETE FROM woken WHERE queue = ?1 AND gate = ?2 AND NOT EXISTS (
    SELECT 1 FROM lane INDEXED BY lane_parked WHERE at = ?2 AND queue = ?1
);

-- name: sleep_all
-- No lane of a queue is parked.
DELETE FROM woken WHERE queue = ?;

-- name: add_lane_until
-- A lane has to pass a condition.
INSERT OR IGNORE INTO lane_until (gate, queue, lane) VALUES (?, ?, ?);

-- name: drop_lane_until
-- The lane is gone.
DELETE FROM lane_until WHERE gate = ? AND queue = ? AND lane = ?;

-- name: lanes_until
-- The lanes that have to pass a condition, with a place before which none of their ready jobs is.
SELECT l.rank, l.id, l.queue, l.lane FROM lane_until AS u JOIN lane AS l ON l.queue = u.queue AND l.lane = u.lane
WHERE u.gate = ?;

-- name: unexpired_of_lane
-- Ready jobs of a lane that have not expired, in order.
SELECT rank, id, queue, lane FROM job INDEXED BY job_ready
WHERE state = 1 AND queue = ?1 AND lane = ?2 AND (expires_at IS NULL OR expires_at > ?3)
ORDER BY rank, id;

-- name: move_to_lane
-- A job passed a condition for good.
UPDATE job SET lane = ?2 WHERE id = ?1;

-- name: open_class
-- A class has an open lane. If it had none, it has not saved up turns.
INSERT INTO class (queue, cls, turn, open) VALUES (?1, ?2, ?3, 1)
ON CONFLICT (queue, cls) DO UPDATE SET turn = max(turn, ?3), open = 1 WHERE open = 0;

-- name: reopen_class
-- The same, if it has one.
INSERT INTO class (queue, cls, turn, open)
SELECT ?1, ?2, ?3, 1
WHERE EXISTS (SELECT 1 FROM lane INDEXED BY lane_open WHERE at IS NULL AND queue = ?1 AND cls = ?2)
ON CONFLICT (queue, cls) DO UPDATE SET turn = max(turn, ?3), open = 1 WHERE open = 0;

-- name: put_class
-- A class after a claim.
INSERT INTO class (queue, cls, turn, open) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (queue, cls) DO UPDATE SET turn = ?3, open = ?4;

-- name: close_class
-- A class that lost a lane has none that is open any more.
UPDATE class SET open = 0 WHERE queue = ?1 AND cls = ?2 AND NOT EXISTS (
    SELECT 1 FROM lane INDEXED BY lane_open WHERE at IS NULL AND queue = ?1 AND cls = ?2
);

-- name: class
-- The turn of a class.
SELECT turn, open FROM class WHERE queue = ?1 AND cls = ?2;

-- name: classes_by_turn
-- Classes with open lanes from a turn on, smallest turn first.
SELECT turn, cls FROM class INDEXED BY class_turn WHERE open = 1 AND queue = ?1 AND turn >= ?2 ORDER BY turn, cls LIMIT ?3;

-- name: classes_of_turn
-- Classes with open lanes and the same turn behind a place, first jobs first; before them the class that has no name.
SELECT turn, cls, rank, id FROM (
    SELECT c.turn, c.cls, coalesce(l.rank, -9223372036854775808) AS rank, coalesce(l.id, 0) AS id
    FROM class AS c INDEXED BY class_turn LEFT JOIN lane AS l ON c.cls <> '' AND l.queue = ?1 AND l.lane = (
        SELECT lane FROM lane INDEXED BY lane_open WHERE at IS NULL AND queue = ?1 AND cls = c.cls
        ORDER BY rank, id LIMIT 1
    )
    WHERE c.open = 1 AND c.queue = ?1 AND c.turn = ?2
) AS heads
WHERE (rank, id) > (?3, ?4) ORDER BY rank, id LIMIT ?5;

-- name: classes_of_lanes
-- The classes of open lanes.
WITH RECURSIVE named (cls) AS (
    SELECT min(cls) FROM lane INDEXED BY lane_open WHERE at IS NULL AND queue = ?1
    UNION ALL
    SELECT (SELECT min(cls) FROM lane INDEXED BY lane_open WHERE at IS NULL AND queue = ?1 AND cls > named.cls)
    FROM named WHERE cls IS NOT NULL
)
SELECT cls FROM named WHERE cls IS NOT NULL;

-- name: drop_classes
-- The turns of a queue begin again.
DELETE FROM class WHERE queue = ?;

-- name: drop_idle
-- Classes without open lanes whose turns no longer matter, or whose queues are empty; up to a limit are examined.
DELETE FROM class WHERE (queue, cls) IN (
    SELECT idle.queue, idle.cls FROM (SELECT queue, cls, turn FROM class INDEXED BY class_idle WHERE open = 0 LIMIT ?) AS idle
    JOIN queue AS q ON q.name = idle.queue
    WHERE idle.turn <= q.turn OR q.waiting + q.ready + q.running = 0
);

-- name: running_lanes
-- The lanes of the running jobs of a queue, and what these cost.
SELECT lane, cost FROM job INDEXED BY job_lease WHERE state = 2 AND lease_until > 0 AND queue = ?1;

-- name: ready_before
-- Ready jobs of a lane before a job, up to a limit.
SELECT id FROM job INDEXED BY job_ready
WHERE state = 1 AND queue = ?1 AND lane = ?2 AND rank <= ?3 AND (rank, id) < (?3, ?4) LIMIT ?5;

-- name: head_cost
-- What the first ready job of a lane costs that has not expired.
SELECT cost FROM job INDEXED BY job_ready
WHERE state = 1 AND queue = ?1 AND lane = ?2 AND (expires_at IS NULL OR expires_at > ?3)
ORDER BY rank, id LIMIT 1;

-- name: blocked_lines
-- Lines of a queue whose head is dead; of those with dead jobs that block, up to a limit are examined.
WITH RECURSIVE fallen (line, n) AS (
    SELECT min(line), 1 FROM job INDEXED BY job_dead_head
    WHERE line >= 'order/' || ?1 || '/' AND line < 'order/' || ?1 || '0' AND state = 4 AND blocks = 1
    UNION ALL
    SELECT (
        SELECT min(line) FROM job INDEXED BY job_dead_head
        WHERE line > fallen.line AND line < 'order/' || ?1 || '0' AND state = 4 AND blocks = 1
    ), n + 1
    FROM fallen WHERE line IS NOT NULL AND n < ?2
)
SELECT count(*) FROM fallen WHERE line IS NOT NULL AND (
    SELECT state FROM job WHERE id = (
        SELECT min(id) FROM job INDEXED BY job_line WHERE line = fallen.line AND {in_line}
    )
) = 4;

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
