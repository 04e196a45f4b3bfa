-- Leases: their extension, one by one or by the heartbeat of a process.

-- New time for runs; whoever holds only some of a run's jobs has broken the others out before.
CREATE FUNCTION forebay.extend(at bigint, span bigint, singles boolean[], lasts bigint[], deliveries integer[])
RETURNS TABLE (single boolean, last_id bigint, stamp bigint, gone text, asked text)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
BEGIN
    RETURN QUERY
    WITH renewed AS (
        UPDATE forebay.run AS r SET lease_until = v_now + span, beat = false
        FROM unnest(singles, lasts, deliveries) AS u (single, last_id, delivery)
        WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts)
            AND r.single = u.single AND r.last_id = u.last_id AND r.delivery = u.delivery AND r.state + 0 = 2
        RETURNING r.*
    ), told AS (
        INSERT INTO forebay.ledger (at, verb, spans)
        SELECT v_now, 'extend', json_agg(json_build_array(
            'extended', r.last_id - r.n + 1 + p.skip, p.n, r.queue, r.kind, r.delivery, r.attempt, 0, r.enqueued_at,
            r.due_at, r.claimed_at, v_now + span,
            CASE WHEN r.facts::text LIKE '%"kind"%' THEN forebay.kinds(r.facts, r.size - r.n + p.skip, p.n) END
        ) ORDER BY r.last_id, p.skip)
        FROM forebay.ledger_rule AS l, renewed AS r, LATERAL (
            SELECT 0, r.n WHERE r.gone IS NULL
            UNION ALL
            SELECT i, 1 FROM generate_series(0, r.n - 1) AS i WHERE get_bit(r.gone, i) = 0
        ) AS p (skip, n)
        WHERE l.recording
        HAVING count(*) > 0
    )
    SELECT r.single, r.last_id, v_now, r.gone::text, r.asked::text FROM renewed AS r;
END
$$;

-- A heartbeat: one row, however many jobs are held, and one record without spans. `changes` moved: others have settled some of them, or ask for an end.
CREATE FUNCTION forebay.heartbeat(at bigint, me integer, span bigint)
RETURNS TABLE (stamp bigint, changes integer)
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
BEGIN
    RETURN QUERY
    WITH beat AS (
        UPDATE forebay.holder AS h SET until = v_now + span, seen_at = v_now WHERE h.id = me RETURNING h.owner, h.changes
    ), told AS (
        INSERT INTO forebay.ledger (at, verb, owner, tick)
        SELECT v_now, 'extend', b.owner, v_now + span FROM beat AS b, forebay.ledger_rule AS l WHERE l.recording
    )
    SELECT v_now, b.changes FROM beat AS b;
END
$$;
