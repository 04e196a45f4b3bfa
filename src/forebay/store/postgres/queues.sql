-- Statements about queues, gates and schedules.

-- name: backlog
-- The backlog of these queues.
SELECT {backlog} FROM unnest(%s::text[]) AS u (name)
LEFT JOIN forebay.queue AS q ON q.name = u.name
LEFT JOIN (
    SELECT {open} FROM forebay.run WHERE queue = ANY (%s::text[]) GROUP BY queue
) AS r ON r.queue = u.name
LEFT JOIN (
    SELECT {held} FROM forebay.pack WHERE queue = ANY (%s::text[]) GROUP BY queue
) AS p ON p.queue = u.name
LEFT JOIN (
    SELECT {finished} FROM forebay.ended
    WHERE queue = ANY (%s::text[]) AND (kept_until IS NULL OR kept_until > %s) GROUP BY queue
) AS e ON e.queue = u.name
LEFT JOIN (
    SELECT k.queue, count(*) AS keys FROM forebay.key AS k
    WHERE k.queue = ANY (%s::text[]) AND k.until > %s AND {taken} GROUP BY k.queue
) AS k ON k.queue = u.name;

-- name: backlogs
-- The backlog of all queues that are configured, paused, or have jobs: every row is read once.
WITH r AS MATERIALIZED (
    SELECT {open} FROM forebay.run GROUP BY queue
), p AS MATERIALIZED (
    SELECT {held} FROM forebay.pack GROUP BY queue
), e AS MATERIALIZED (
    SELECT {finished} FROM forebay.ended WHERE kept_until IS NULL OR kept_until > %s GROUP BY queue
), k AS (
    SELECT k.queue, count(*) AS keys FROM forebay.key AS k WHERE k.until > %s AND {taken} GROUP BY k.queue
)
SELECT {backlog} FROM (
    SELECT name FROM forebay.queue WHERE spec IS NOT NULL OR paused_until IS NOT NULL
    UNION SELECT queue FROM r
    UNION SELECT queue FROM p
    UNION SELECT queue FROM e
) AS u
LEFT JOIN forebay.queue AS q ON q.name = u.name
LEFT JOIN r ON r.queue = u.name LEFT JOIN p ON p.queue = u.name LEFT JOIN e ON e.queue = u.name LEFT JOIN k ON k.queue = u.name
ORDER BY u.name;

-- name: queue_names
-- Names of queues that are configured, paused, or have jobs, by pages.
SELECT name FROM (
    SELECT name FROM forebay.queue WHERE spec IS NOT NULL OR paused_until IS NOT NULL
    UNION SELECT queue FROM forebay.run
    UNION SELECT queue FROM forebay.pack
    UNION SELECT queue FROM forebay.ended WHERE kept_until IS NULL OR kept_until > %s
) AS u
WHERE name COLLATE "C" > %s AND name COLLATE "C" >= %s AND name COLLATE "C" < %s
ORDER BY name COLLATE "C" LIMIT %s;

-- name: totals
-- The sums of all queues, in every row, and the largest queues: every row is read once.
WITH r AS MATERIALIZED (
    SELECT {open} FROM forebay.run GROUP BY queue
), p AS MATERIALIZED (
    SELECT {held} FROM forebay.pack GROUP BY queue
), e AS MATERIALIZED (
    SELECT {finished} FROM forebay.ended WHERE kept_until IS NULL OR kept_until > %s GROUP BY queue
), c AS (
    SELECT u.name, coalesce(r.waiting, 0) AS waiting, coalesce(r.ready, 0) AS ready, coalesce(p.running, 0) AS running,
        coalesce(e.done, 0) AS done, coalesce(e.dead, 0) AS dead, coalesce(e.cancelled, 0) AS cancelled
    FROM (
        SELECT name FROM forebay.queue WHERE spec IS NOT NULL OR paused_until IS NOT NULL
        UNION SELECT queue FROM r
        UNION SELECT queue FROM p
        UNION SELECT queue FROM e
    ) AS u
    LEFT JOIN r ON r.queue = u.name LEFT JOIN p ON p.queue = u.name LEFT JOIN e ON e.queue = u.name
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
LEFT JOIN r ON r.queue = u.name LEFT JOIN p ON p.queue = u.name LEFT JOIN e ON e.queue = u.name LEFT JOIN k ON k.queue = u.name
ORDER BY u.depth DESC, u.dead DESC, u.name COLLATE "C";

-- name: lock_queue
-- Lock one queue to configure it.
INSERT INTO forebay.queue AS q (name) VALUES (%s) ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING q.spec, q.paused_until;

-- name: any_jobs
-- Whether a queue has jobs.
SELECT EXISTS (SELECT FROM forebay.run WHERE queue = %s) OR EXISTS (SELECT FROM forebay.pack WHERE queue = %s)
    OR EXISTS (SELECT FROM forebay.ended WHERE queue = %s);

-- name: put_spec
-- Another spec of a queue, with a new version.
UPDATE forebay.queue
SET spec = %s, version = version + 1, max_depth = %s, is_log = %s, plain = %s, max_attempts = %s, key_window = %s,
    unique_states = %s, max_dead = %s, laned = %s, whole = %s::jsonb, terms = %s::jsonb, weights = %s::jsonb, weight = %s
WHERE name = %s;

-- name: pause
-- Pause a queue until an instant, or resume it.
UPDATE forebay.queue SET paused_until = %s WHERE name = %s;

-- name: work_at
-- When a claim or a reaper may next find something.
SELECT * FROM forebay.work_at(
    at => %s::bigint, queues => %s::text[], leads => %s::bigint[], floors => %s::bigint[], silent => %s::integer[],
    silent_floors => %s::bigint[], fixed_floor => %s::bigint
);

-- name: gates
-- Gates in use, or with an operator's number: the slots that apply, those in use, that number, and the jobs parked there.
WITH page AS MATERIALIZED (
    SELECT n.name FROM (
        (
            SELECT g.name FROM forebay.gate AS g
            WHERE g.name > %s AND g.name >= %s AND g.name < %s AND (g.used > 0 OR g.tat > %s) ORDER BY g.name LIMIT %s
        )
        UNION (
            SELECT l.name FROM forebay.gate_limit AS l WHERE l.name > %s AND l.name >= %s AND l.name < %s
            ORDER BY l.name LIMIT %s
        )
    ) AS n ORDER BY n.name LIMIT %s
)
SELECT n.name, coalesce(l.slots, g.slots), coalesce(g.used, 0), l.slots, coalesce(p.jobs, 0) FROM page AS n
LEFT JOIN forebay.gate AS g ON g.name = n.name LEFT JOIN forebay.gate_limit AS l ON l.name = n.name
LEFT JOIN forebay.parked_at(%s, ARRAY(SELECT name FROM page), %s) AS p ON p.name = n.name
ORDER BY n.name;

-- name: gate_states
-- Slots in use, theoretical arrival times of rates, and operators' numbers.
SELECT n.name, coalesce(g.used, 0), coalesce(g.tat, 0), l.slots FROM unnest(%s::text[]) AS n (name)
LEFT JOIN forebay.gate AS g ON g.name = n.name LEFT JOIN forebay.gate_limit AS l ON l.name = n.name;

-- name: gate_limit
-- The operator's number of slots.
SELECT slots FROM forebay.gate_limit WHERE name = %s;

-- name: set_gate_limit
-- Set the operator's number.
INSERT INTO forebay.gate_limit (name, slots) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET slots = excluded.slots;

-- name: drop_gate_limit
-- Return to the number of the spec.
DELETE FROM forebay.gate_limit WHERE name = %s;

-- name: drop_rates
-- Remove rates whose theoretical arrival time has passed.
DELETE FROM forebay.gate WHERE name = ANY (ARRAY(
    SELECT name FROM forebay.gate WHERE tat > 0 AND tat <= %s AND used = 0 ORDER BY tat LIMIT %s FOR UPDATE SKIP LOCKED
));

-- name: drop_lanes
-- Remove lanes and turns of a queue.
WITH lanes AS (DELETE FROM forebay.lane WHERE queue = %s), classes AS (DELETE FROM forebay.class WHERE queue = %s)
DELETE FROM forebay.share WHERE queue = %s;

-- name: reset_turns
-- Reset the turns of a queue's classes.
WITH current AS (DELETE FROM forebay.share WHERE queue = %s) UPDATE forebay.class SET turn = 0 WHERE queue = %s;

-- name: ready_lanes
-- The lanes of a queue that have ready jobs.
WITH RECURSIVE found AS (
    (SELECT r.lane FROM forebay.run AS r WHERE r.state = 1 AND r.queue = %s ORDER BY r.lane LIMIT 1)
    UNION ALL
    SELECT (
        SELECT r.lane FROM forebay.run AS r WHERE r.state = 1 AND r.queue = %s AND r.lane > found.lane
        ORDER BY r.lane LIMIT 1
    )
    FROM found WHERE found.lane IS NOT NULL
)
SELECT lane FROM found WHERE lane IS NOT NULL;

-- name: lanes_until
-- The queues that have lanes with the gate of a condition.
SELECT DISTINCT queue FROM forebay.lane WHERE untils @> ARRAY[%s::text];

-- name: held_until
-- The first ready jobs with the gate of a condition; what has expired is left out.
SELECT r.last_id, r.queue, r.lane, r.cls, r.gates FROM forebay.lane AS l CROSS JOIN LATERAL (
    SELECT * FROM forebay.run AS r
    WHERE r.state = 1 AND r.queue = l.queue AND r.lane = l.lane AND (r.expires_at IS NULL OR r.expires_at > %s)
    ORDER BY r.rank, r.last_id LIMIT %s
) AS r
WHERE l.untils @> ARRAY[%s::text] ORDER BY r.rank, r.last_id LIMIT %s;

-- name: change_lane
-- Move a job to the lane without the gate that it has passed.
UPDATE forebay.run SET gates = %s::text[], lane = %s WHERE single AND last_id = %s;

-- name: due_job
-- One job that a gate or a line may hold.
SELECT r.last_id, r.queue, r.state, r.lane, r.line, r.gates, r.rank, r.due_at FROM forebay.find(ARRAY[%s::bigint]) AS f
CROSS JOIN LATERAL (
    SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0
) AS r;

-- name: lane_head
-- What the first job of a lane costs.
SELECT cost FROM forebay.run WHERE state = 1 AND queue = %s AND lane = %s AND (expires_at IS NULL OR expires_at > %s)
ORDER BY rank, last_id LIMIT 1;

-- name: line_head
-- The smallest unfinished id of a line, a dead one that blocks it included, and whether it runs.
SELECT h.id, EXISTS (SELECT FROM forebay.running_line AS l WHERE l.line = h.line AND l.id = h.id)
FROM (SELECT line, least(behind, exposed, dead) AS id FROM forebay.line_heads(ARRAY[%s])) AS h WHERE h.id IS NOT NULL;

-- name: line_before
-- How many jobs of a line are behind its head and before a job, up to a limit.
SELECT count(*) FROM (
    SELECT FROM forebay.run WHERE line = %s AND last_id > %s AND last_id < %s LIMIT %s
) AS b;

-- name: ahead
-- How many jobs of its lane are before a ready job, up to a limit.
SELECT least(%s, coalesce((
    SELECT sum(b.n) FROM (
        SELECT r.n FROM forebay.run AS r
        WHERE r.state = 1 AND r.queue = j.queue AND r.lane = j.lane AND (r.rank, r.last_id) < (j.rank, j.last_id)
        ORDER BY r.rank, r.last_id LIMIT %s
    ) AS b
), 0) + %s - (j.last_id - j.n + 1))
FROM forebay.find(ARRAY[%s::bigint]) AS f CROSS JOIN LATERAL (
    SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0
) AS j
WHERE j.state = 1;

-- name: schedules
-- Every schedule.
SELECT body, last_at FROM forebay.schedule WHERE body IS NOT NULL ORDER BY name;

-- name: schedule
-- Lock one schedule to change it.
SELECT body, last_at FROM forebay.schedule WHERE name = %s FOR UPDATE;

-- name: put_schedule
-- Create or edit; the last tick is kept.
INSERT INTO forebay.schedule AS s (name, body) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET body = excluded.body;

-- name: drop_schedule
-- Drop all but the last tick.
UPDATE forebay.schedule SET body = NULL WHERE name = %s AND body IS NOT NULL;

-- name: tick
-- Fire a tick.
UPDATE forebay.schedule AS s SET body = v.body, last_at = v.at
FROM (SELECT %s::text AS name, %s::text AS body, %s::bigint AS at) AS v WHERE s.name = v.name;
