-- Statements about queues, gates and schedules.

-- name: backlog
-- These queues at a glance.
SELECT {backlog} FROM unnest(%s::text[]) AS u (name)
LEFT JOIN forebay.queue AS q ON q.name = u.name
LEFT JOIN (
    SELECT {open} FROM forebay.run WHERE queue = ANY (%s::text[]) GROUP BY queue
) AS r ON r.queue = u.name
LEFT JOIN (
    SELECT {gone} FROM forebay.ended
    WHERE queue = ANY (%s::text[]) AND (kept_until IS NULL OR kept_until > %s) GROUP BY queue
) AS e ON e.queue = u.name
LEFT JOIN (
    SELECT k.queue, count(*) AS keys FROM forebay.key AS k
    WHERE k.queue = ANY (%s::text[]) AND k.until > %s AND {taken} GROUP BY k.queue
) AS k ON k.queue = u.name;

-- name: backlogs
-- All queues that are configured, paused, or hold jobs: every row is counted, once.
WITH r AS MATERIALIZED (
    SELECT {open} FROM forebay.run GROUP BY queue
), e AS MATERIALIZED (
    SELECT {gone} FROM forebay.ended WHERE kept_until IS NULL OR kept_until > %s GROUP BY queue
), k AS (
    SELECT k.queue, count(*) AS keys FROM forebay.key AS k WHERE k.until > %s AND {taken} GROUP BY k.queue
)
SELECT {backlog} FROM (
    SELECT name FROM forebay.queue WHERE spec IS NOT NULL OR paused_until IS NOT NULL
    UNION SELECT queue FROM r
    UNION SELECT queue FROM e
) AS u
LEFT JOIN forebay.queue AS q ON q.name = u.name
LEFT JOIN r ON r.queue = u.name LEFT JOIN e ON e.queue = u.name LEFT JOIN k ON k.queue = u.name
ORDER BY u.name;

-- name: queue_names
-- Names of queues that are configured, paused, or hold jobs, by pages.
SELECT name FROM (
    SELECT name FROM forebay.queue WHERE spec IS NOT NULL OR paused_until IS NOT NULL
    UNION SELECT queue FROM forebay.run
    UNION SELECT queue FROM forebay.ended WHERE kept_until IS NULL OR kept_until > %s
) AS u
WHERE name COLLATE "C" > %s AND name COLLATE "C" >= %s AND name COLLATE "C" < %s
ORDER BY name COLLATE "C" LIMIT %s;

-- name: totals
-- All queues together, in every row, and those that hold most: every row is counted, once.
WITH r AS MATERIALIZED (
    SELECT {open} FROM forebay.run GROUP BY queue
), e AS MATERIALIZED (
    SELECT {gone} FROM forebay.ended WHERE kept_until IS NULL OR kept_until > %s GROUP BY queue
), c AS (
    SELECT u.name, coalesce(r.waiting, 0) AS waiting, coalesce(r.ready, 0) AS ready, coalesce(r.running, 0) AS running,
        coalesce(e.done, 0) AS done, coalesce(e.dead, 0) AS dead, coalesce(e.cancelled, 0) AS cancelled
    FROM (
        SELECT name FROM forebay.queue WHERE spec IS NOT NULL OR paused_until IS NOT NULL
        UNION SELECT queue FROM r
        UNION SELECT queue FROM e
    ) AS u
    LEFT JOIN r ON r.queue = u.name LEFT JOIN e ON e.queue = u.name
), u AS MATERIALIZED (
    SELECT name, waiting + ready + running AS depth, dead FROM c
    ORDER BY depth DESC, dead DESC, name COLLATE "C" LIMIT %s
), k AS (
    SELECT k.queue, count(*) AS keys FROM forebay.key AS k
    WHERE k.queue IN (SELECT u.name FROM u) AND k.until > %s AND {taken} GROUP BY k.queue
), s AS (
    SELECT count(*) AS queues, sum(waiting) AS waiting, sum(ready) AS ready, sum(running) AS running,
        sum(done) AS done, sum(dead) AS dead, sum(cancelled) AS cancelled
    FROM c
)
SELECT s.queues, s.waiting, s.ready, s.running, s.done, s.dead, s.cancelled, {backlog} FROM s CROSS JOIN u
LEFT JOIN forebay.queue AS q ON q.name = u.name
LEFT JOIN r ON r.queue = u.name LEFT JOIN e ON e.queue = u.name LEFT JOIN k ON k.queue = u.name
ORDER BY u.depth DESC, u.dead DESC, u.name COLLATE "C";

-- name: lock_queue
-- One queue, for a turn that configures it.
INSERT INTO forebay.queue AS q (name) VALUES (%s) ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING q.spec, q.paused_until;

-- name: any_jobs
-- Whether a queue has jobs.
SELECT EXISTS (SELECT FROM forebay.run WHERE queue = %s) OR EXISTS (SELECT FROM forebay.ended WHERE queue = %s);

-- name: put_spec
-- A queue has another spec; everybody's picture of it is old.
UPDATE forebay.queue
SET spec = %s, version = version + 1, depth_most = %s, is_log = %s, plain = %s, lives = %s, key_window = %s,
    unique_states = %s
WHERE name = %s;

-- name: pause
-- Nobody claims from a queue until then.
UPDATE forebay.queue SET paused_until = %s WHERE name = %s;

-- name: work_at
-- When a claim or a reaping may next find something.
SELECT * FROM forebay.work_at(
    %s::text[], %s::bigint[], %s::bigint[], %s::integer[], %s::bigint[], %s::bigint
);

-- name: look
-- Gates: their slots, holders, waiters, lines, the operator's numbers, what a rate has, the heads of their lines,
-- and how many of those in it are dead.
SELECT n.name, coalesce(g.slots, 0), coalesce(g.held, 0), coalesce(g.parked, 0), coalesce(g.standing, 0),
    coalesce(g.opened, false), (SELECT l.slots FROM forebay.gate_limit AS l WHERE l.name = n.name),
    coalesce(g.step, 0), coalesce(g.tide, 0),
    CASE WHEN g.standing > 0 THEN (SELECT min(l.id) FROM forebay.line AS l WHERE l.gate = n.name) END,
    g.name IS NOT NULL, coalesce(g.fallen, 0)
FROM unnest(%s::text[]) AS n (name) LEFT JOIN LATERAL (
    SELECT * FROM forebay.gate AS g WHERE g.name = n.name OFFSET 0
) AS g ON true;

-- name: gates
-- Gates that are in use: the slots that hold now, holders, waiters. No number lets two in where a line says who is next.
SELECT g.name, least(coalesce(l.slots, g.slots), CASE WHEN g.standing > 0 THEN 1 END), g.held, g.parked,
    l.slots
FROM forebay.gate AS g LEFT JOIN forebay.gate_limit AS l ON l.name = g.name
WHERE g.name COLLATE "C" > %s AND g.name COLLATE "C" >= %s AND g.name COLLATE "C" < %s
    AND (g.held > 0 OR g.parked > 0 OR g.standing > 0)
ORDER BY g.name COLLATE "C" LIMIT %s;

-- name: gate_limit
-- The operator's own number of slots.
SELECT slots FROM forebay.gate_limit WHERE name = %s;

-- name: set_gate_limit
-- An operator gives a gate another number.
INSERT INTO forebay.gate_limit VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET slots = excluded.slots;

-- name: drop_gate_limit
-- Back to the stamped number.
DELETE FROM forebay.gate_limit WHERE name = %s;

-- name: put_gate
-- Gates after a turn.
INSERT INTO forebay.gate (name, slots, held, parked, standing, opened, step, tide, fallen)
SELECT * FROM unnest(
    %s::text[], %s::integer[], %s::integer[], %s::integer[], %s::integer[], %s::boolean[], %s::bigint[], %s::bigint[],
    %s::integer[]
) ON CONFLICT (name) DO UPDATE
SET slots = excluded.slots, held = excluded.held, parked = excluded.parked, standing = excluded.standing,
    opened = excluded.opened, step = excluded.step, tide = excluded.tide, fallen = excluded.fallen;

-- name: drop_gate
-- Nobody holds it, waits at it or stands in line: a million subjects leave nothing behind.
DELETE FROM forebay.gate WHERE name = ANY (%s);

-- name: drop_ebbed
-- Rates that owe nothing any more and that nobody waits at.
DELETE FROM forebay.gate WHERE name = ANY (ARRAY(
    SELECT name FROM forebay.gate WHERE step > 0 AND parked = 0 AND tide <= %s ORDER BY tide LIMIT %s
));

-- name: first_parked
-- Who gets the next slot of a gate without an order.
SELECT last_id, queue, cls, 0, rank, due_at, gates, gate FROM forebay.run
WHERE gate = %s ORDER BY rank, last_id LIMIT 1;

-- name: first_of
-- Who of a queue is the first at a rate.
SELECT last_id, queue, cls, 0, rank, due_at, gates, gate FROM forebay.run
WHERE left(gate, 5) = 'rate/' AND gate = %s AND queue = %s ORDER BY rank, last_id LIMIT 1;

-- name: first_of_class
-- Who of a class is the first at a gate where classes take turns.
SELECT last_id, queue, cls, 0, rank, due_at, gates, gate FROM forebay.run
WHERE gate = %s AND gates ~ ',[1-9][0-9]*]' AND queue = %s AND cls = %s ORDER BY rank, last_id LIMIT 1;

-- name: join_turns
-- Classes that have no place in a ring come last.
INSERT INTO forebay.turn
SELECT u.gate, u.queue, u.cls, u.place + forebay.end_of_ring(u.gate, u.queue), 0
FROM unnest(%s::text[], %s::text[], %s::text[]) WITH ORDINALITY AS u (gate, queue, cls, place)
ON CONFLICT DO NOTHING;

-- name: whose_turn
-- The class at the head of a ring.
SELECT head FROM forebay.head_of_ring(%s, %s) AS head WHERE head IS NOT NULL;

-- name: rest_of_turn
-- What a class may still take.
SELECT rest FROM forebay.turn WHERE gate = %s AND queue = %s AND cls = %s;

-- name: go_on
-- Its turn goes on.
UPDATE forebay.turn SET rest = %s WHERE gate = %s AND queue = %s AND cls = %s;

-- name: end_turn
-- Its turn is over.
UPDATE forebay.turn SET rest = 0, place = forebay.end_of_ring(%s, %s)
WHERE gate = %s AND queue = %s AND cls = %s;

-- name: leave_turns
-- A class of which nobody is parked there loses its place.
DELETE FROM forebay.turn WHERE gate = %s AND queue = %s AND cls = %s;

-- name: drop_turns
-- Nobody is parked there.
DELETE FROM forebay.turn WHERE gate = ANY (%s);

-- name: drop_idle
-- Where no rate is open, turns are dealt by the processes.
DELETE FROM forebay.turn AS t WHERE t.gate = ''
    AND NOT EXISTS (SELECT FROM forebay.pace AS p WHERE p.open AND p.queue = t.queue);

-- name: parked
-- One job, if it is parked at a gate.
SELECT last_id, queue, cls, 0, rank, due_at, gates, gate FROM forebay.run
WHERE single AND last_id = %s AND gate IS NOT NULL;

-- name: parked_at
-- The first of those that are parked at a gate without an order; who has expired is left out.
SELECT last_id, queue, cls, 0, rank, due_at, gates, gate FROM forebay.run
WHERE gate = %s AND (expires_at IS NULL OR expires_at > %s) ORDER BY rank, last_id LIMIT %s;

-- name: pass
-- Jobs leave the gate where they are parked, with the stamps of the others.
UPDATE forebay.run AS r SET gates = u.gates, gate = NULL
FROM unnest(%s::bigint[], %s::text[]) AS u (id, gates) WHERE r.single AND r.last_id = u.id;

-- name: parked_before
-- How many are parked at a gate before a job, so many at most.
SELECT count(*) FROM (
    SELECT FROM forebay.run WHERE gate = %s AND (rank, last_id) < (%s, %s) LIMIT %s
) AS b;

-- name: class_before
-- The same of its class at a gate where classes take turns.
SELECT count(*) FROM (
    SELECT FROM forebay.run
    WHERE gate = %s AND gates ~ ',[1-9][0-9]*]' AND queue = %s AND cls = %s AND (rank, last_id) < (%s, %s) LIMIT %s
) AS b;

-- name: standing_before
-- How many are parked before a job in its line, so many at most.
SELECT count(*) FROM (
    SELECT FROM forebay.line AS l JOIN forebay.run AS r ON r.single AND r.last_id = l.id AND r.gate = l.gate
    WHERE l.gate = %s AND l.id < %s LIMIT %s
) AS b;

-- name: ahead
-- How many of its class go before a ready job, so many at most.
SELECT least(%s, coalesce((
    SELECT sum(b.n) FROM (
        SELECT r.n FROM forebay.run AS r
        WHERE r.state = 1 AND r.queue = j.queue AND r.cls = j.cls AND (r.rank, r.last_id) < (j.rank, j.last_id)
        ORDER BY r.rank, r.last_id LIMIT %s
    ) AS b
), 0) + %s - (j.last_id - j.n + 1))
FROM forebay.find(ARRAY[%s::bigint]) AS f JOIN forebay.run AS j ON j.single = f.single AND j.last_id = f.last_id
WHERE j.state = 1;

-- name: pace
-- When a rate lets the first of a queue in.
SELECT opens_at FROM forebay.pace WHERE queue = %s AND gate = %s;

-- name: paced
-- The queues of those who are parked at a rate.
SELECT queue FROM forebay.pace WHERE gate = %s;

-- name: put_pace
-- Who of a queue is the first at a rate, and when it is let in.
INSERT INTO forebay.pace (queue, gate, opens_at, rank, id, open, cls) VALUES (%s, %s, %s, %s, %s, %s, %s)
ON CONFLICT (queue, gate) DO UPDATE
SET opens_at = excluded.opens_at, rank = excluded.rank, id = excluded.id, open = excluded.open, cls = excluded.cls;

-- name: drop_pace
-- Nobody of the queue is parked there.
DELETE FROM forebay.pace WHERE queue = %s AND gate = %s;

-- name: enter_line
-- A job stands in the line of an ordered gate.
INSERT INTO forebay.line VALUES (%s, %s) ON CONFLICT DO NOTHING;

-- name: line_up
-- New jobs stand in their lines.
INSERT INTO forebay.line SELECT * FROM unnest(%s::text[], %s::bigint[]);

-- name: leave_line
-- A job leaves it.
DELETE FROM forebay.line WHERE gate = %s AND id = %s;

-- name: head_of_line
-- The smallest unfinished id.
SELECT min(id) FROM forebay.line WHERE gate = %s;

-- name: schedules
-- Every schedule.
SELECT body, last_at FROM forebay.schedule WHERE body IS NOT NULL ORDER BY name;

-- name: schedule
-- One schedule and its last tick, for a turn that changes it.
SELECT body, last_at FROM forebay.schedule WHERE name = %s FOR UPDATE;

-- name: put_schedule
-- Create or edit; the last tick is not ours to change.
INSERT INTO forebay.schedule AS s (name, body) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET body = excluded.body;

-- name: drop_schedule
-- Only the last tick stays.
UPDATE forebay.schedule SET body = NULL WHERE name = %s AND body IS NOT NULL;

-- name: tick
-- A slot is taken.
UPDATE forebay.schedule AS s SET body = v.body, last_at = v.at
FROM (SELECT %s::text AS name, %s::text AS body, %s::bigint AS at) AS v WHERE s.name = v.name;
