-- Leases: their extension, pack by pack or by the heartbeat of a process.

-- Extend packs; jobs that are not to be extended have been split off before. Returns the packs that exist.
CREATE FUNCTION forebay.extend(at bigint, lease_for bigint, packs bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
BEGIN
    RETURN QUERY UPDATE forebay.pack AS p SET lease_until = v_now + lease_for, by_heartbeat = false WHERE p.id = ANY (packs) RETURNING p.id;
    INSERT INTO forebay.ledger (at, verb, ranges)
    SELECT v_now, 'extend', ('[' || string_agg(forebay.ledger_range(
        change => 'extended', first => r.last_id - r.n + 1 + j.skip, n => j.n, queue => r.queue, kind => r.kind,
        delivery => r.delivery, attempt => r.attempt, max_attempts => 0, enqueued_at => r.enqueued_at, due_at => r.due_at,
        claimed_at => r.claimed_at, until => v_now + lease_for, tail => forebay.kinds(r.facts, r.size - r.n + j.skip, j.n)
    ), ',' ORDER BY r.last_id, j.skip) || ']')::json
    FROM forebay.ledger_rule AS l, forebay.running AS r, LATERAL (
        SELECT 0, r.n WHERE r.settled IS NULL
        UNION ALL
        SELECT i, 1 FROM generate_series(0, r.n - 1) AS i WHERE get_bit(r.settled, i) = 0
    ) AS j (skip, n)
    WHERE l.recording AND r.pack = ANY (packs)
    HAVING count(*) > 0;
END
$$;

-- A heartbeat: one row, however many jobs are held, and one record without ranges. If `changes` is another number, others
-- have settled some of the jobs or requested their cancellation.
CREATE FUNCTION forebay.heartbeat(at bigint, holder_id integer, lease_for bigint)
RETURNS TABLE (stamp bigint, changes integer)
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
BEGIN
    RETURN QUERY
    WITH beat AS (
        UPDATE forebay.holder AS h SET until = v_now + lease_for, seen_at = v_now WHERE h.id = holder_id RETURNING h.owner, h.changes
    ), recorded AS (
        INSERT INTO forebay.ledger (at, verb, owner, tick)
        SELECT v_now, 'extend', b.owner, v_now + lease_for FROM beat AS b, forebay.ledger_rule AS l WHERE l.recording
    )
    SELECT v_now, b.changes FROM beat AS b;
END
$$;

-- When there is work in these queues (0: now; later if they are paused), when a job becomes due, when a lease ends; and
-- whether there is something in the inbox. `leads`, `floors`: as in `claim`.
CREATE FUNCTION forebay.work_at(
    at bigint, queues text[], leads bigint[], floors bigint[], silent integer[], silent_floors bigint[], fixed_floor bigint
)
RETURNS TABLE (ready_at bigint, due_at bigint, lease_until bigint, needs_maintenance boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
-- Otherwise it is planned in every call, which takes longer than its execution.
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT
        (
            SELECT min(greatest(coalesce(q.paused_until, 0), w.at)) FROM unnest(queues, leads, floors) AS u (name, lead, floor)
            LEFT JOIN forebay.queue AS q ON q.name = u.name CROSS JOIN LATERAL (
                -- Not EXISTS, for which the planner may hash all rows.
                SELECT CASE
                    WHEN q.laned OR q.whole <> '[]' OR (
                        SELECT true FROM forebay.lane AS l WHERE l.queue = u.name LIMIT 1
                    ) THEN forebay.workable_at(coalesce(work_at.at, forebay.clock()), u.name)
                    WHEN u.floor IS NULL
                    THEN (SELECT 0 FROM forebay.run AS r WHERE r.state = 1 AND r.queue = u.name LIMIT 1)
                    ELSE coalesce(
                        (
                            SELECT 0 FROM forebay.run AS r
                            WHERE r.state = 1 AND r.queue = u.name AND r.lane = '' AND r.rank >= u.floor LIMIT 1
                        ), (
                            SELECT 0 FROM forebay.run AS r WHERE r.state = 1 AND r.queue = u.name AND r.lane = ''
                                AND r.rank >= coalesce(u.lead, -9223372036854775808) AND r.rank < 0 LIMIT 1
                        )
                    )
                END AS at
            ) AS w
            WHERE w.at IS NOT NULL
        ),
        (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 3),
        least(
            (
                -- The leases of a holder cannot end before its heartbeat does.
                SELECT min(greatest(h.until, l.first)) FROM forebay.holder AS h, LATERAL (
                    SELECT h.until AS first WHERE h.until > forebay.clock()
                    UNION ALL
                    SELECT (
                        SELECT p.lease_until FROM forebay.pack AS p
                        WHERE p.holder = h.id AND p.lease_until > coalesce((
                            SELECT f.floor FROM unnest(silent, silent_floors) AS f (id, floor) WHERE f.id = h.id
                        ), -9223372036854775808)
                        ORDER BY p.lease_until LIMIT 1
                    )
                    WHERE h.until <= forebay.clock()
                ) AS l
                WHERE l.first IS NOT NULL
            ),
            (
                SELECT min(p.lease_until) FROM forebay.pack AS p WHERE NOT p.by_heartbeat AND p.lease_until > fixed_floor
            )
        ),
        EXISTS (SELECT FROM forebay.inbox);
END
$$;
