-- Lines; what the end of a delivery gives back to gates, lines and lanes; when a queue with gates or lanes has work.

-- Of each line: the smallest id behind its head, that of the exposed head, and that of a dead head that blocks it.
CREATE FUNCTION forebay.line_heads(v_lines text[]) RETURNS TABLE (line text, behind bigint, exposed bigint, dead bigint)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT n.line, (
        SELECT r.last_id FROM forebay.run AS r WHERE r.line = n.line AND least(r.state, 1) = 0 ORDER BY r.last_id LIMIT 1
    ), least((
        SELECT r.last_id FROM forebay.run AS r WHERE r.line = n.line AND least(r.state, 1) = 1 ORDER BY r.last_id LIMIT 1
    ), (
        SELECT l.id FROM forebay.running_line AS l WHERE l.line = n.line ORDER BY l.id LIMIT 1
    )), (
        SELECT e.id FROM forebay.ended AS e WHERE e.state = 4 AND e.blocks AND e.line = n.line ORDER BY e.id LIMIT 1
    )
    FROM (SELECT DISTINCT unnest(v_lines) AS line) AS n
$$;

-- Expose the smallest unfinished id of each line, unless a later one still runs or a dead head blocks the line. Returns
-- queues that may have work, and how many jobs became ready.
CREATE FUNCTION forebay.expose(v_now bigint, v_lines text[], OUT has_work text[], OUT ready integer)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_change record;
BEGIN
    has_work := '{}';
    ready := 0;
    FOR v_change IN
        WITH known AS MATERIALIZED (
            SELECT * FROM forebay.line_heads(v_lines)
        ), withdrawn AS (
            UPDATE forebay.run AS r SET state = 0 FROM known AS k
            WHERE k.exposed IS NOT NULL AND r.line = k.line AND least(r.state, 1) = 1
                AND r.last_id > least(k.behind, k.exposed, k.dead)
            RETURNING r.queue, r.lane, r.state
        ), shown AS (
            UPDATE forebay.run AS r SET state = CASE WHEN r.due_at > v_now THEN 3 ELSE 1 END FROM known AS k
            WHERE r.single AND r.last_id = k.behind AND k.behind = least(k.behind, k.exposed, k.dead) AND NOT EXISTS (
                SELECT FROM forebay.running_line AS l WHERE l.line = k.line
            )
            RETURNING r.queue, r.lane, r.state
        )
        SELECT c.queue, array_agg(c.lane) FILTER (WHERE c.state <> 3) AS lanes,
            count(*) FILTER (WHERE c.state = 1) AS shown,
            bool_or(c.lane <> '') OR coalesce((SELECT q.laned FROM forebay.queue AS q WHERE q.name = c.queue), false) AS laned
        FROM (SELECT * FROM withdrawn UNION ALL SELECT * FROM shown) AS c GROUP BY c.queue
    LOOP
        IF v_change.laned AND v_change.lanes IS NOT NULL THEN
            has_work := has_work || forebay.refresh(v_now, v_change.queue, v_change.lanes);
        END IF;
        IF v_change.shown > 0 THEN
            has_work := has_work || v_change.queue;
            ready := ready + v_change.shown;
        END IF;
    END LOOP;
END
$$;

-- Jobs of a member that do not run any more: `amount` is what they cost together, `id` the last of them.
CREATE TYPE forebay.freed AS (queue text, lane text, line text, gates text[], amount bigint, id bigint);

-- Give their slots back and bring lines up to date; if some of them are ready `again`, lanes as well. Returns queues that
-- may have work.
CREATE FUNCTION forebay.give_back(v_now bigint, v_freed forebay.freed[], again boolean) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on SET enable_hashjoin = on
AS $$
#variable_conflict use_column
DECLARE
    v_gates text[];
    v_shared text[];
    v_lines text[];
    v_lane record;
    v_has_work text[] := '{}';
BEGIN
    WITH known AS MATERIALIZED (
        SELECT q.name, q.whole, q.terms, f.amount
        FROM (SELECT f.queue, sum(f.amount) AS amount FROM unnest(v_freed) AS f GROUP BY f.queue) AS f
        JOIN forebay.queue AS q ON q.name = f.queue WHERE q.whole <> '[]' OR q.terms <> '[]'
    ), used AS MATERIALIZED (
        SELECT u.name, sum(u.amount) AS amount, bool_or(u.whole) AS whole, bool_or(u.shared) AS shared FROM (
            SELECT w.name, k.amount, true AS whole, w.shared
            FROM known AS k CROSS JOIN LATERAL jsonb_to_recordset(k.whole) AS w (name text, step bigint, shared boolean) WHERE w.step = 0
            UNION ALL
            SELECT g.name, f.amount, false, false FROM known AS k
            CROSS JOIN LATERAL jsonb_to_recordset(k.terms) AS t (prefix text, exact boolean, step bigint)
            JOIN unnest(v_freed) AS f ON f.queue = k.name CROSS JOIN LATERAL unnest(f.gates) AS g (name)
            WHERE t.step = 0 AND (g.name = t.prefix AND t.exact OR NOT t.exact AND starts_with(g.name, t.prefix || '/'))
        ) AS u
        GROUP BY u.name
    ), less AS (
        UPDATE forebay.gate AS g SET used = g.used - u.amount FROM used AS u WHERE g.name = u.name AND g.used > u.amount
    ), unused AS (
        DELETE FROM forebay.gate AS g USING used AS u WHERE g.name = u.name AND g.used <= u.amount
    )
    SELECT array_agg(u.name) FILTER (WHERE NOT u.whole), array_agg(u.name) FILTER (WHERE u.shared)
    INTO v_gates, v_shared FROM used AS u;
    IF v_gates IS NOT NULL THEN
        v_has_work := forebay.wake(v_now, v_gates);
    END IF;
    IF v_shared IS NOT NULL THEN
        v_has_work := v_has_work || forebay.sharing_queues(v_shared);
    END IF;
    SELECT array_agg(f.line) INTO v_lines FROM unnest(v_freed) AS f WHERE f.line IS NOT NULL;
    IF v_lines IS NOT NULL THEN
        DELETE FROM forebay.running_line AS l USING unnest(v_freed) AS f WHERE l.line = f.line AND l.id = f.id;
        v_has_work := v_has_work || (SELECT e.has_work FROM forebay.expose(v_now, v_lines) AS e);
    END IF;
    IF again THEN
        FOR v_lane IN
            SELECT f.queue, array_agg(f.lane) AS lanes FROM unnest(v_freed) AS f
            WHERE f.line IS NULL AND (
                f.lane <> '' OR (SELECT q.laned FROM forebay.queue AS q WHERE q.name = f.queue)
            ) GROUP BY f.queue
        LOOP
            v_has_work := v_has_work || forebay.refresh(v_now, v_lane.queue, v_lane.lanes);
        END LOOP;
    END IF;
    RETURN v_has_work;
END
$$;

-- The queues for which one of these is a gate of the whole queue.
CREATE FUNCTION forebay.sharing_queues(v_gates text[]) RETURNS text[] LANGUAGE sql STABLE SET enable_seqscan = off
AS $$
    SELECT coalesce(array_agg(q.name), '{}') FROM forebay.queue AS q
    WHERE q.whole <> '[]' AND EXISTS (
        SELECT FROM jsonb_to_recordset(q.whole) AS w (name text) WHERE w.name = ANY (v_gates)
    )
$$;

-- After a change of a spec: count again what running jobs use of the caps with these names, or with these prefixes and a
-- slash.
CREATE FUNCTION forebay.count_used(bases text[]) RETURNS void LANGUAGE sql
AS $$
    WITH used AS (
        SELECT k.name, k.slots, sum(r.cost * (r.n - coalesce(bit_count(r.settled), 0))) AS amount
        FROM forebay.running AS r JOIN forebay.queue AS q ON q.name = r.queue CROSS JOIN LATERAL (
            SELECT w.name, w.slots FROM jsonb_to_recordset(q.whole) AS w (name text, slots integer, step bigint)
            WHERE w.step = 0
            UNION ALL
            SELECT g.name, t.slots FROM unnest(r.gates) AS g (name)
            JOIN jsonb_to_recordset(q.terms) AS t (prefix text, exact boolean, slots integer, step bigint)
                ON t.step = 0 AND (g.name = t.prefix AND t.exact OR NOT t.exact AND starts_with(g.name, t.prefix || '/'))
        ) AS k
        WHERE EXISTS (
            SELECT FROM unnest(bases) AS b (name) WHERE k.name = b.name OR starts_with(k.name, b.name || '/')
        )
        GROUP BY k.name, k.slots
    ), counted AS (
        SELECT u.name, max(u.slots) AS slots, sum(u.amount) AS amount FROM used AS u GROUP BY u.name
    ), unused AS (
        -- Not NOT EXISTS: by its guess of few rows the planner would compare each gate with each.
        DELETE FROM forebay.gate AS g WHERE g.tat = 0 AND g.name NOT IN (SELECT c.name FROM counted AS c)
            AND EXISTS (SELECT FROM unnest(bases) AS b (name) WHERE g.name = b.name OR starts_with(g.name, b.name || '/'))
    )
    INSERT INTO forebay.gate AS g (name, slots, used) SELECT c.name, c.slots, c.amount FROM counted AS c
    ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, used = excluded.used
$$;

-- When a claim may find something in a queue with gates or lanes if nothing changes: 0 now, later at a rate, NULL never.
CREATE FUNCTION forebay.workable_at(v_now bigint, v_queue text) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_cost integer;
    v_at bigint := 0;
    v_gate record;
BEGIN
    SELECT r.cost INTO v_cost FROM (
        SELECT l.lane FROM (
            SELECT c.cls FROM forebay.class AS c WHERE c.queue = v_queue AND c.open ORDER BY c.turn LIMIT 1
        ) AS c CROSS JOIN LATERAL (
            SELECT l.lane FROM forebay.lane AS l WHERE l.queue = v_queue AND l.cls = c.cls AND l.at IS NULL
            ORDER BY l.rank, l.id LIMIT 1
        ) AS l
        UNION ALL (
            SELECT l.lane FROM forebay.lane AS l WHERE l.queue = v_queue AND l.cls = '' AND l.at IS NULL
            ORDER BY l.rank, l.id LIMIT 1
        )
        UNION ALL SELECT ''
    ) AS l CROSS JOIN LATERAL (
        SELECT r.cost FROM forebay.run AS r WHERE r.state = 1 AND r.queue = v_queue AND r.lane = l.lane
        ORDER BY r.rank, r.last_id LIMIT 1
    ) AS r
    LIMIT 1;
    IF v_cost IS NULL THEN
        SELECT min(l.opens_at) INTO v_at FROM forebay.lane AS l WHERE l.queue = v_queue AND l.opens_at IS NOT NULL;
    END IF;
    IF v_at IS NULL THEN
        RETURN NULL;
    END IF;
    FOR v_gate IN
        SELECT forebay.opens_at(g.tat, g.slots, coalesce(v_cost, 1), g.step) AS at FROM forebay.whole_gates(v_now, v_queue) AS g
        WHERE forebay.fitting(g.room, g.slots, coalesce(v_cost, 1)) = 0
    LOOP
        IF v_gate.at IS NULL THEN
            RETURN NULL;
        END IF;
        v_at := greatest(v_at, v_gate.at);
    END LOOP;
    RETURN v_at;
END
$$;
