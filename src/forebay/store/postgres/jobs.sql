-- Statements about jobs, for the general verbs. Polls and hot verbs are functions, see `migrations/`.
-- `= ANY (ARRAY(SELECT …))`: the list is computed once; with IN the planner may compute it for every row.
-- `state + 0`: so that the planner uses the primary key, not an index of all rows in that state.
-- Running jobs are in packs, all others that have not ended are in runs.

-- name: lock_bounded
-- The next call that adds jobs to these bounded queues waits for this unit.
SELECT name, max_depth FROM forebay.queue WHERE name = ANY (%s) ORDER BY name FOR UPDATE;

-- name: depth
-- How many jobs of a queue count against its capacity.
SELECT coalesce(sum(r.n), 0)::bigint
FROM (
    SELECT n, queue FROM forebay.run WHERE state = 1
    UNION ALL SELECT n, queue FROM forebay.run WHERE state <> 1
    UNION ALL SELECT n - coalesce(bit_count(settled), 0), queue FROM forebay.pack
) AS r
WHERE r.queue = %s;

-- name: set_max_depth
-- The upper bound of the jobs of a bounded queue.
UPDATE forebay.queue SET max_depth = %s WHERE name = %s;

-- name: insert
-- New runs: ready, not yet due, or behind the head of their line. Gates come as the JSON of their names.
INSERT INTO forebay.run (
    last_id, rank, due_at, enqueued_at, rank_base, expires_at, n, size, cost, max_attempts, state, single, rank_timed,
    merges, blocks, queue, lane, cls, kind, subject, line, gates, facts, bodies
)
SELECT u.last_id, u.rank, u.due_at, u.enqueued_at, u.rank_base, u.expires_at, u.n, u.n, u.cost, u.max_attempts, u.state,
    u.n = 1, u.rank_timed, u.merges, u.blocks, u.queue, u.lane, u.cls, u.kind, u.subject, u.line,
    CASE WHEN u.gates IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(u.gates::jsonb)) END, u.facts, u.bodies
FROM unnest(
    %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::integer[], %s::integer[],
    %s::integer[], %s::smallint[], %s::smallint[], %s::boolean[], %s::boolean[], %s::text[], %s::text[], %s::text[],
    %s::text[], %s::text[], %s::text[], %s::text[], %b::json[], %b::json[]
) AS u (
    last_id, rank, due_at, enqueued_at, rank_base, expires_at, n, cost, max_attempts, state, rank_timed, merges, blocks,
    queue, lane, cls, kind, subject, line, gates, facts, bodies
);

-- name: keys
-- Those of these keys whose window has not ended.
SELECT k.queue, k.key, k.job_id, k.digest, k.until
FROM unnest(%s::text[], %s::text[]) AS u (queue, key), LATERAL (
    SELECT * FROM forebay.key AS k WHERE k.queue = u.queue AND k.key = u.key OFFSET 0
) AS k
WHERE k.until > %s;

-- name: reserve_keys
-- Take keys; those that other jobs have are not returned.
INSERT INTO forebay.key AS k (queue, key, job_id, digest, until)
SELECT * FROM unnest(%s::text[], %s::text[], %s::bigint[], %s::bytea[], %s::bigint[])
ON CONFLICT (queue, key) DO UPDATE SET job_id = excluded.job_id, digest = excluded.digest, until = excluded.until
WHERE k.until <= %s
RETURNING k.queue, k.key;

-- name: move_key
-- The draft with this key was merged into another job.
UPDATE forebay.key SET job_id = %s WHERE queue = %s AND key = %s;

-- name: merge_target
-- The waiting job into which a newer draft of its subject is merged.
SELECT last_id, enqueued_at, due_at, rank_timed, facts, lane FROM forebay.run
WHERE merges AND queue = %s AND subject = %s AND (expires_at IS NULL OR expires_at > %s)
ORDER BY last_id DESC LIMIT 1 FOR UPDATE;

-- name: merge
-- Merge a newer draft into a waiting job, with its urgency, and its due time if it has one.
UPDATE forebay.run AS r
SET kind = %s, bodies = %s, facts = %s, expires_at = %s, due_at = coalesce(%s::bigint, r.due_at),
    rank = coalesce(%s::bigint, r.rank + %s - r.rank_base), rank_base = %s
WHERE r.single AND r.last_id = %s;

-- name: found
-- The runs and members of these jobs.
SELECT f.id, {run} FROM forebay.find(%s::bigint[]) AS f, LATERAL (
    SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0
) AS r
UNION ALL
SELECT r.id, {running} FROM (SELECT f.id, (f.run).* FROM forebay.find_running(%s::bigint[]) AS f) AS r;

-- name: running_jobs
-- Those of these jobs that run, and the member of each.
SELECT f.id, forebay.leased_until((f.run).by_heartbeat, (f.run).lease_until, (f.run).holder),
    coalesce(get_bit((f.run).cancel_requested, f.position - (f.run).base) = 1, false), (f.run).pack, (f.run).jobs, (f.run).number,
    (f.run).base, (f.run).last_id, (f.run).n, (f.run).delivery, (f.run).by_heartbeat
FROM forebay.find_running(%s::bigint[]) AS f;

-- name: ended
-- Those of these jobs that are finished and still readable.
SELECT {ended} FROM forebay.ended AS e WHERE e.id = ANY (%s::bigint[]) AND (e.kept_until IS NULL OR e.kept_until > %s);

-- name: report
-- Progress of running jobs; returns those whose delivery is the current one.
WITH held AS (
    SELECT u.* FROM unnest(%s::bigint[], %s::integer[], %s::double precision[], %s::text[]) AS u (id, delivery, portion, note)
    JOIN forebay.find_running(%s::bigint[]) AS f ON f.id = u.id AND (f.run).delivery = u.delivery
), reported AS (
    INSERT INTO forebay.progress AS p (id, delivery, portion, note, at)
    SELECT h.id, h.delivery, h.portion, h.note, coalesce(%s::bigint, forebay.clock()) FROM held AS h ORDER BY h.id
    ON CONFLICT (id) DO UPDATE
    SET delivery = excluded.delivery, portion = excluded.portion, note = excluded.note, at = excluded.at
    WHERE p.delivery <= excluded.delivery
)
SELECT h.id, h.delivery FROM held AS h;

-- name: progress
-- The progress of these jobs.
SELECT id, delivery, portion, note, at FROM forebay.progress WHERE id = ANY (%s::bigint[]);

-- name: drop_progress
-- Remove the progress of jobs that have ended; a job that waits again keeps it until its next report.
WITH reported AS MATERIALIZED (SELECT array_agg(p.id) AS ids FROM forebay.progress AS p)
DELETE FROM forebay.progress AS p WHERE NOT EXISTS (
    SELECT FROM reported, forebay.find(reported.ids) AS f WHERE f.id = p.id
) AND NOT EXISTS (
    SELECT FROM reported, forebay.find_running(reported.ids) AS f WHERE f.id = p.id
);

-- name: unfinished
-- Those of these jobs that have not ended.
SELECT f.id FROM forebay.find(%s::bigint[]) AS f UNION ALL SELECT f.id FROM forebay.find_running(%s::bigint[]) AS f
UNION ALL SELECT i.id FROM forebay.inbox AS i WHERE i.id = ANY (%s::bigint[]);

-- name: last_settles
-- The last settle of each of these jobs.
SELECT f.id, r.settled_delivery, r.settled_code FROM forebay.find(%s::bigint[]) AS f, LATERAL (
    SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0
) AS r
UNION ALL
SELECT f.id, (f.run).settled_delivery, (f.run).settled_code FROM forebay.find_running(%s::bigint[]) AS f
UNION ALL
SELECT e.id, e.settled_delivery, e.settled_code FROM forebay.ended AS e WHERE e.id = ANY (%s::bigint[])
UNION ALL
SELECT m.id, m.delivery, m.code FROM forebay.removed_settles(%s::bigint[]) AS m;

-- name: overdue
-- Packs past their lease: of holders without a heartbeat, and those that no heartbeat extends. Each holder is scanned from
-- its floor on; no more packs than have the jobs that are wanted.
SELECT {running} FROM (
    SELECT p.*, sum(p.n) OVER (ORDER BY p.until, p.pack) - p.n AS before FROM (
        SELECT p.id AS pack, p.n - coalesce(bit_count(p.settled), 0) AS n,
            forebay.leased_until(p.by_heartbeat, p.lease_until, p.holder) AS until
        FROM (
            SELECT p.* FROM forebay.holder AS h
            LEFT JOIN unnest(%s::integer[], %s::bigint[]) AS f (id, floor) ON f.id = h.id, LATERAL (
                SELECT * FROM forebay.pack AS p
                WHERE p.holder = h.id AND p.by_heartbeat AND p.lease_until <= %s
                    AND p.lease_until > coalesce(f.floor, -9223372036854775808)
                ORDER BY p.lease_until LIMIT %s
            ) AS p
            WHERE h.until <= %s
            UNION ALL (
                SELECT * FROM forebay.pack AS p
                WHERE NOT p.by_heartbeat AND p.lease_until > %s AND p.lease_until <= %s
                ORDER BY p.lease_until LIMIT %s
            )
        ) AS p
    ) AS p
) AS p, LATERAL (SELECT * FROM forebay.running AS r WHERE r.pack = p.pack OFFSET 0) AS r
WHERE p.before < %s ORDER BY p.until, p.pack, r.base;

-- name: silent_holders
-- Holders without a heartbeat.
SELECT id FROM forebay.holder WHERE until <= %s;

-- name: runs_end
-- The last id that one page reads of runs of one job, or of many.
SELECT r.last_id FROM forebay.run AS r WHERE r.single = %s AND r.last_id > %s ORDER BY r.last_id OFFSET %s LIMIT 1;

-- name: page_runs
-- Runs from an id to another one, until they have as many jobs as are wanted.
SELECT {run} FROM (
    SELECT p.*, sum(p.n) OVER (ORDER BY p.last_id) - p.n AS before FROM (
        SELECT * FROM (
            SELECT * FROM forebay.run AS r
            WHERE r.single = %s AND r.last_id > %s AND r.last_id <= %s ORDER BY r.last_id LIMIT %s
        ) AS r
        WHERE (%s::smallint[] IS NULL OR r.state = ANY (%s::smallint[])) AND (%s::text IS NULL OR r.queue = %s)
        ORDER BY r.last_id LIMIT %s
    ) AS p
) AS r
WHERE r.before < %s ORDER BY r.last_id;

-- name: page_held
-- Members with any of the first running jobs after an id, as many as are wanted.
WITH member AS MATERIALIZED (
    SELECT r.*, r.last_id - r.n + 1 AS first_id FROM forebay.running AS r
    WHERE r.pack = ANY (ARRAY(SELECT p.id FROM forebay.pack AS p WHERE p.ids && int8range(%s, %s, '(]')))
        AND r.last_id > %s AND (%s::text IS NULL OR r.queue = %s)
), last_wanted AS (
    SELECT id FROM member AS m, generate_series(greatest(m.first_id, %s + 1), m.last_id) AS id
    WHERE m.settled IS NULL OR get_bit(m.settled, (id - m.first_id)::integer) = 0
    ORDER BY id OFFSET %s LIMIT 1
)
SELECT {running} FROM member AS r WHERE r.first_id <= coalesce((SELECT id FROM last_wanted), %s);

-- name: ended_end
-- The last id that one page reads of finished jobs.
SELECT e.id FROM forebay.ended AS e WHERE e.id > %s ORDER BY e.id OFFSET %s LIMIT 1;

-- name: dead_end
-- The last id that one page reads of dead letters.
SELECT e.id FROM forebay.ended AS e WHERE e.state = 4 AND e.id > %s ORDER BY e.id OFFSET %s LIMIT 1;

-- name: page_dead
-- Dead letters from an id to another one, however far apart they are.
SELECT {ended} FROM (
    SELECT * FROM forebay.ended AS e WHERE e.state = 4 AND e.id > %s AND e.id <= %s ORDER BY e.id LIMIT %s
) AS e
WHERE (e.kept_until IS NULL OR e.kept_until > %s) AND (%s::smallint IS NULL OR e.state = %s)
    AND (%s::text IS NULL OR e.queue = %s) AND (%s::text IS NULL OR coalesce(e.facts ->> 'kind', e.kind) = %s)
ORDER BY e.id LIMIT %s;

-- name: page_ended
-- Finished jobs from an id to another one.
SELECT {ended} FROM (
    SELECT * FROM forebay.ended AS e WHERE e.id > %s AND e.id <= %s ORDER BY e.id LIMIT %s
) AS e
WHERE (e.kept_until IS NULL OR e.kept_until > %s)
    AND (%s::smallint IS NULL OR e.state = %s) AND (%s::text IS NULL OR e.queue = %s)
    AND (%s::text IS NULL OR coalesce(e.facts ->> 'kind', e.kind) = %s)
ORDER BY e.id LIMIT %s;

-- name: unclaimed_oldest
-- Runs of a bounded queue, in the order in which the oldest are shed.
SELECT r.single, r.last_id, r.n, r.rank FROM (
    SELECT single, last_id, n, rank FROM forebay.run WHERE state = 1 AND queue = %s
    UNION ALL SELECT single, last_id, n, rank FROM forebay.run WHERE state <> 1 AND queue = %s
) AS r
ORDER BY r.last_id LIMIT %s;

-- name: unclaimed_lowest
-- The same where the lowest in rank are shed.
SELECT r.single, r.last_id, r.n, r.rank FROM (
    SELECT single, last_id, n, rank FROM forebay.run WHERE state = 1 AND queue = %s
    UNION ALL SELECT single, last_id, n, rank FROM forebay.run WHERE state <> 1 AND queue = %s
) AS r
ORDER BY r.rank DESC, r.last_id DESC LIMIT %s;

-- name: lock_unclaimed
-- Lock those of these runs that no claim has locked.
SELECT r.single, r.last_id, r.n, r.rank FROM forebay.run AS r
JOIN unnest(%s::boolean[], %s::bigint[]) AS u (single, last_id) ON r.single = u.single AND r.last_id = u.last_id
FOR UPDATE OF r SKIP LOCKED;

-- name: singles
-- Runs of one job, with the columns of `expired`.
SELECT last_id, queue, state, lane, line, kind, attempt, errors FROM forebay.run
WHERE single AND last_id = ANY (%s::bigint[]) ORDER BY last_id;

-- name: lock_singles
-- Lock runs of one job, to cancel them.
SELECT last_id, queue, state, lane, line, kind, settled_delivery, settled_code FROM forebay.run
WHERE single AND last_id = ANY (%s::bigint[]) ORDER BY last_id FOR UPDATE;

-- name: expired
-- Jobs that were not claimed in time; those that a claim has locked are in time.
SELECT last_id, queue, state, lane, line, kind, attempt, errors FROM forebay.run
WHERE expires_at IS NOT NULL AND expires_at <= %s AND queue = ANY (%s)
ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED;

-- name: expired_queues
-- The queues of the first jobs that were not claimed in time.
SELECT DISTINCT e.queue FROM (
    SELECT queue FROM forebay.run
    WHERE expires_at IS NOT NULL AND expires_at <= %s ORDER BY expires_at LIMIT %s
) AS e;

-- name: end_singles
-- End unclaimed jobs and keep them, each until an instant; dead ones may be kept in another queue.
WITH deleted AS (
    DELETE FROM forebay.run AS r
    USING unnest(%s::bigint[], %s::text[], %s::text[], %s::bigint[]) AS u (id, errors, queue, kept_until)
    WHERE r.single AND r.last_id = u.id
    RETURNING r.*, u.errors AS known, u.queue AS elsewhere, u.kept_until
)
INSERT INTO forebay.ended (
    id, due_at, enqueued_at, finished_at, kept_until, expires_at, rank_base, delivery, attempt, max_attempts,
    settled_delivery, state, rank_timed, cancel_requested, queue, cls, kind, settled_code, cost, blocks, lane, line, gates,
    errors, facts, body, home
)
SELECT r.last_id, r.due_at, r.enqueued_at, %s, r.kept_until, r.expires_at, r.rank_base, r.delivery, r.attempt, r.max_attempts,
    r.settled_delivery, %s, r.rank_timed, r.cancel_requested, coalesce(r.elsewhere, r.queue), r.cls, r.kind,
    r.settled_code, r.cost, r.blocks, r.lane, r.line, r.gates, coalesce(r.known, r.errors), r.facts -> (r.size - 1), r.bodies -> (r.size - 1),
    CASE WHEN r.elsewhere IS NOT NULL THEN r.queue END
FROM deleted AS r;

-- name: delete
-- Delete unclaimed jobs.
DELETE FROM forebay.run WHERE single AND last_id = ANY (%s::bigint[]);

-- name: store_settles
-- The last settles of jobs that were deleted.
INSERT INTO forebay.settled (jobs, firsts, sizes, deliveries, codes)
VALUES (%s, %s::bigint[], %s::integer[], %s::integer[], %s::text[]);

-- name: request_cancel
-- Request the cancellation of running jobs; returns their holders.
UPDATE forebay.pack AS p
SET cancel_requested = coalesce(p.cancel_requested, repeat('0', p.n)::bit varying) | (
    SELECT string_agg(CASE WHEN i = ANY (u.positions) THEN '1' ELSE '0' END, '' ORDER BY i)
    FROM generate_series(0, p.n - 1) AS i
)::bit varying
FROM (
    SELECT k.pack, array_agg(k.position) AS positions
    FROM unnest(%s::bigint[], %s::integer[]) AS k (pack, position) GROUP BY k.pack
) AS u
WHERE p.id = u.pack
RETURNING p.holder;

-- name: holders_changed
-- Make holders check their jobs one by one.
UPDATE forebay.holder SET changes = changes + 1 WHERE id = ANY (%s::integer[]);

-- name: dead
-- Lock those of these jobs that are dead.
SELECT id, queue, state, lane, line, kind, coalesce(home, queue) FROM forebay.ended
WHERE id = ANY (%s::bigint[]) AND state + 0 = 4 AND (kept_until IS NULL OR kept_until > %s) ORDER BY id FOR UPDATE;

-- name: redrive
-- Dead jobs are ready again in their home queues, with all attempts left and without an expiry.
WITH back AS (
    DELETE FROM forebay.ended AS e WHERE e.id = ANY (%s::bigint[]) AND e.state + 0 = 4 RETURNING e.*
), stamp AS (SELECT %s::bigint AS at)
INSERT INTO forebay.run (
    last_id, rank, due_at, enqueued_at, rank_base, n, size, delivery, attempt, max_attempts, settled_delivery, state,
    single, rank_timed, blocks, queue, lane, cls, kind, settled_code, cost, line, gates, errors, facts, bodies
)
SELECT e.id, forebay.rank_at(e.rank_base, e.rank_timed, s.at, s.at), s.at, e.enqueued_at, e.rank_base, 1, 1, e.delivery,
    0, e.max_attempts, e.settled_delivery, CASE WHEN e.line IS NULL THEN 1 ELSE 0 END, true, e.rank_timed,
    e.blocks, coalesce(e.home, e.queue), e.lane, e.cls, e.kind, e.settled_code, e.cost, e.line, e.gates, e.errors, CASE WHEN e.facts IS NOT NULL THEN json_build_array(e.facts) END,
    json_build_array(e.body)
FROM back AS e, stamp AS s;

-- name: purge
-- Remove jobs that ended in this state before an instant, oldest first.
DELETE FROM forebay.ended WHERE id = ANY (ARRAY(
    SELECT id FROM forebay.ended WHERE state = %s AND finished_at < %s AND (kept_until IS NULL OR kept_until > %s)
    ORDER BY finished_at, id LIMIT %s FOR UPDATE SKIP LOCKED
))
RETURNING id, queue, state, lane, line, kind, settled_delivery, settled_code, coalesce(home, queue);

-- name: purge_queue
-- The same of one queue.
DELETE FROM forebay.ended WHERE id = ANY (ARRAY(
    SELECT id FROM forebay.ended WHERE queue = %s AND state = %s AND finished_at < %s AND (kept_until IS NULL OR kept_until > %s)
    ORDER BY finished_at, id LIMIT %s FOR UPDATE SKIP LOCKED
))
RETURNING id, queue, state, lane, line, kind, settled_delivery, settled_code, coalesce(home, queue);

-- name: purge_excess_dead
-- Remove the oldest dead letters beyond the limits of their queues.
SELECT id, queue, state, lane, line, kind, settled_delivery, settled_code, coalesce(home, queue)
FROM forebay.purge_excess_dead(%s, %s);

-- name: recount_dead
-- Dead letters were removed: they are counted again.
UPDATE forebay.queue SET dead_counted_to = NULL WHERE name = ANY (%s::text[]) AND dead_counted_to IS NOT NULL;

-- name: purge_kept
-- Remove finished jobs that need not be kept any more.
DELETE FROM forebay.ended WHERE id = ANY (ARRAY(
    SELECT id FROM forebay.ended WHERE kept_until IS NOT NULL AND kept_until <= %s ORDER BY kept_until LIMIT %s
    FOR UPDATE SKIP LOCKED
))
RETURNING id, queue, state, lane, line, kind, settled_delivery, settled_code, coalesce(home, queue);

-- name: sweep_keys
-- Remove keys whose window has passed, some at a time.
DELETE FROM forebay.key WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM forebay.key WHERE until <= %s ORDER BY until LIMIT %s FOR UPDATE SKIP LOCKED
));

-- name: keys_by_state
-- Keys that are taken by the state of their job, after a given one.
SELECT k.queue, k.key FROM forebay.key AS k
WHERE k.until >= 7258118400000000 AND (k.queue, k.key) > (%s, %s) ORDER BY k.queue, k.key LIMIT %s;

-- name: drop_keys
-- Remove those of these keys whose job does not exist any more.
DELETE FROM forebay.key AS k USING unnest(%s::text[], %s::text[]) AS u (queue, key)
WHERE k.queue = u.queue AND k.key = u.key AND k.until >= 7258118400000000 AND NOT forebay.in_states(k.job_id, 63);

-- name: sweep_calls
-- Remove calls that will not be repeated any more; returns how many.
WITH swept AS (
    DELETE FROM forebay.call WHERE token = ANY (ARRAY(
        SELECT token FROM forebay.call WHERE at < %s ORDER BY at LIMIT %s FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) FROM swept;

-- name: sweep_settled
-- Remove the oldest settles beyond the number that is kept.
DELETE FROM forebay.settled WHERE seq <= (
    SELECT max(s.seq) FROM (
        SELECT seq, sum(jobs) OVER (ORDER BY seq DESC ROWS UNBOUNDED PRECEDING) - jobs AS newer FROM forebay.settled
    ) AS s
    WHERE s.newer >= %s
);

-- name: sweep_holders
-- Remove processes without a heartbeat for long that hold nothing.
DELETE FROM forebay.holder AS h
WHERE h.seen_at < %s AND NOT EXISTS (SELECT FROM forebay.pack AS p WHERE p.holder = h.id);

-- name: inbox
-- Take jobs from the inbox, in order.
DELETE FROM forebay.inbox WHERE id = ANY (ARRAY(
    SELECT id FROM forebay.inbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
))
RETURNING id, draft;

-- name: refuse
-- A job of the inbox that is invalid is a dead letter.
INSERT INTO forebay.ended (
    id, due_at, enqueued_at, finished_at, rank_base, delivery, attempt, max_attempts, settled_delivery, state, rank_timed,
    cancel_requested, queue, cls, kind, settled_code, errors, body
)
SELECT v.id, v.now, v.now, v.now, 0, 0, 0, 1, 0, 4, 1, false, coalesce(v.draft ->> 'queue', 'default'), '',
    coalesce(v.draft ->> 'kind', 'unknown'), '', v.errors, v.draft
FROM (SELECT %s::bigint AS id, %s::bigint AS now, %s::text AS errors, %b::json AS draft) AS v;
