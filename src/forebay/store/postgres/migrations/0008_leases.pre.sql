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
        'extended', r.last_id - r.n + 1 + j.skip, j.n, r.queue, r.kind, r.delivery, r.attempt, 0, r.enqueued_at, r.due_at,
        r.claimed_at, v_now + lease_for,
        forebay.kinds(r.facts, r.size - r.n + j.skip, j.n)
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
