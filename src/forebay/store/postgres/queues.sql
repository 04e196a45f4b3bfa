-- Statements about queues, gates and schedules.

-- name: backlog
-- Queues at a glance: waiting, ready, running, when the oldest ready job became ready; done, dead, cancelled; keys.
SELECT u.name, coalesce(r.waiting, 0), coalesce(r.ready, 0), coalesce(r.running, 0), coalesce(e.done, 0),
    coalesce(e.dead, 0), coalesce(e.cancelled, 0), r.oldest, q.paused_until, coalesce(k.keys, 0)
FROM unnest(%s::text[]) AS u (name)
LEFT JOIN forebay.queue AS q ON q.name = u.name
LEFT JOIN (
    SELECT queue, sum(n) FILTER (WHERE state IN (0, 3)) AS waiting, sum(n) FILTER (WHERE state = 1) AS ready,
        sum(n - coalesce(bit_count(gone), 0)) FILTER (WHERE state = 2) AS running,
        min(due_at) FILTER (WHERE state = 1) AS oldest
    FROM forebay.run WHERE queue = ANY (%s::text[]) GROUP BY queue
) AS r ON r.queue = u.name
LEFT JOIN (
    SELECT queue, count(*) FILTER (WHERE state = 3) AS done, count(*) FILTER (WHERE state = 4) AS dead,
        count(*) FILTER (WHERE state = 5) AS cancelled
    FROM forebay.ended WHERE queue = ANY (%s::text[]) AND (kept_until IS NULL OR kept_until > %s) GROUP BY queue
) AS e ON e.queue = u.name
LEFT JOIN (
    SELECT queue, count(*) AS keys FROM forebay.key AS k WHERE k.queue = ANY (%s::text[]) AND k.until > %s AND (
        k.until < 7258118400000000 OR forebay.in_states(
            k.job_id, coalesce((SELECT q.unique_states FROM forebay.queue AS q WHERE q.name = k.queue), 7)
        )
    )
    GROUP BY queue
) AS k ON k.queue = u.name;

-- name: queues
-- Queues that are configured, paused, or hold jobs.
SELECT name FROM forebay.queue WHERE spec IS NOT NULL OR paused_until IS NOT NULL
UNION SELECT queue FROM forebay.run
UNION SELECT queue FROM forebay.ended
ORDER BY 1;

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

-- name: gate
-- One gate: its slots, holders, waiters, line, the operator's number, and what a rate has.
SELECT g.slots, g.held, g.parked, g.standing, g.opened,
    (SELECT l.slots FROM forebay.gate_limit AS l WHERE l.name = g.name), g.step, g.tide
FROM forebay.gate AS g WHERE g.name = %s;

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
-- One gate after a turn.
INSERT INTO forebay.gate (name, slots, held, parked, standing, opened, step, tide)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (name) DO UPDATE
SET slots = excluded.slots, held = excluded.held, parked = excluded.parked, standing = excluded.standing,
    opened = excluded.opened, step = excluded.step, tide = excluded.tide;

-- name: drop_gate
-- Nobody holds it, waits at it or stands in line: a million subjects leave nothing behind.
DELETE FROM forebay.gate WHERE name = %s;

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

-- name: paced
-- The queues of those who are parked at a rate.
SELECT queue FROM forebay.pace WHERE gate = %s;

-- name: put_pace
-- Who of a queue is the first at a rate, and when it is let in.
INSERT INTO forebay.pace (queue, gate, opens_at, rank, id, open) VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT (queue, gate) DO UPDATE
SET opens_at = excluded.opens_at, rank = excluded.rank, id = excluded.id, open = excluded.open;

-- name: drop_pace
-- Nobody of the queue is parked there.
DELETE FROM forebay.pace WHERE queue = %s AND gate = %s;

-- name: enter_line
-- A job stands in the line of an ordered gate.
INSERT INTO forebay.line VALUES (%s, %s) ON CONFLICT DO NOTHING;

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
