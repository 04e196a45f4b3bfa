-- Gates and lanes: which ready jobs a claim may hand out. The rules are those of engine/lanes.py, in the same words.
--
-- Advisory locks serialise verbs: there is one for each queue whose claims need more than the next ready job, and one for
-- each gate that queues share. A verb takes those of its queues in order before it reads anything, and then checks that the
-- specs are the ones it was called with; a new spec is written under the old locks and the new ones. Claims and settles of
-- plain queues share the lock of their queue, so that the writer of a new spec, who holds it alone, counts what really runs.

-- Returns true. Called in an assignment, which unlike a PERFORM is no statement of its own; so are the locks of plain queues.
CREATE FUNCTION forebay.lock_queues(exclusive_keys integer[], shared_keys integer[]) RETURNS boolean LANGUAGE plpgsql
AS $$
DECLARE
    v_key integer;
    v_locked text;
BEGIN
    IF cardinality(exclusive_keys) = 0 THEN
        FOREACH v_key IN ARRAY shared_keys LOOP
            v_locked := pg_advisory_xact_lock_shared(1178748739, v_key);
        END LOOP;
        RETURN true;
    END IF;
    PERFORM CASE WHEN k.exclusive THEN pg_advisory_xact_lock(1178748739, k.key)
        ELSE pg_advisory_xact_lock_shared(1178748739, k.key) END
    FROM (
        SELECT u.key, bool_or(u.exclusive) AS exclusive FROM (
            SELECT unnest(exclusive_keys) AS key, true AS exclusive UNION ALL SELECT unnest(shared_keys), false
        ) AS u GROUP BY u.key ORDER BY u.key
    ) AS k;
    RETURN true;
END
$$;

-- Whether these are the versions of these specs now.
CREATE FUNCTION forebay.is_current(names text[], versions integer[]) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
BEGIN
    -- Not a join: under the settings of its callers all queues would be read.
    RETURN NOT EXISTS (
        SELECT FROM unnest(names, versions) AS u (name, version)
        WHERE coalesce((SELECT q.version FROM forebay.queue AS q WHERE q.name = u.name), 0) <> u.version
    );
END
$$;

-- The locks of a unit of work; returns its instant, or NULL if a spec has changed.
CREATE FUNCTION forebay.begin_unit(at bigint, exclusive_keys integer[], names text[], versions integer[]) RETURNS bigint
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN CASE WHEN CASE WHEN forebay.lock_queues(exclusive_keys, '{}') THEN forebay.is_current(names, versions) END
        THEN coalesce(at, forebay.clock()) END;
END
$$;

-- The gates of a whole queue with what they have now. `slots`: the operator's number, else the spec's, which is `stamped`.
CREATE FUNCTION forebay.whole_gates(v_now bigint, v_queue text)
RETURNS TABLE (name text, stamped integer, slots integer, step bigint, tat bigint, room bigint)
LANGUAGE sql STABLE SET enable_seqscan = off
AS $$
    SELECT w.name, w.slots, coalesce(l.slots, w.slots), w.step, g.tat,
        forebay.room(coalesce(l.slots, w.slots), w.step, g.used, g.tat, v_now)
    FROM forebay.queue AS q CROSS JOIN LATERAL jsonb_to_recordset(q.whole) AS w (name text, slots integer, step bigint)
    LEFT JOIN forebay.gate AS g ON g.name = w.name LEFT JOIN forebay.gate_limit AS l ON l.name = w.name
    WHERE q.name = v_queue
$$;

-- The same for gates of lanes; those for which the spec has no term hold nothing and are left out.
CREATE FUNCTION forebay.lane_gates(v_now bigint, v_queue text, names text[])
RETURNS TABLE (name text, stamped integer, slots integer, step bigint, tat bigint, room bigint)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_nestloop = on SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    SELECT n.name, t.slots, coalesce(l.slots, t.slots), t.step, g.tat,
        forebay.room(coalesce(l.slots, t.slots), t.step, g.used, g.tat, v_now)
    FROM forebay.queue AS q
    CROSS JOIN LATERAL jsonb_to_recordset(q.terms) AS t (prefix text, exact boolean, slots integer, step bigint)
    JOIN unnest(names) AS n (name) ON n.name = t.prefix AND t.exact OR NOT t.exact AND starts_with(n.name, t.prefix || '/')
    LEFT JOIN LATERAL (SELECT * FROM forebay.gate AS g WHERE g.name = n.name OFFSET 0) AS g ON true
    LEFT JOIN LATERAL (SELECT * FROM forebay.gate_limit AS l WHERE l.name = n.name OFFSET 0) AS l ON true
    WHERE q.name = v_queue
$$;

-- Jobs have started: these gates have so much less room.
CREATE FUNCTION forebay.use_gates(v_now bigint, names text[], v_slots integer[], v_steps bigint[], amounts bigint[])
RETURNS void LANGUAGE sql
AS $$
    INSERT INTO forebay.gate AS g (name, slots, used, tat)
    SELECT u.name, u.slots, CASE WHEN u.step = 0 THEN u.amount ELSE 0 END,
        CASE WHEN u.step = 0 THEN 0 ELSE v_now + u.amount * u.step END
    FROM unnest(names, v_slots, v_steps, amounts) AS u (name, slots, step, amount) WHERE u.amount > 0 ORDER BY u.name
    ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, used = g.used + excluded.used,
        tat = CASE WHEN excluded.tat > 0 THEN greatest(g.tat, v_now) + excluded.tat - v_now ELSE g.tat END
$$;

-- Classes whose lanes have changed. One that had no open lane is lifted: idle time is not saved up.
CREATE FUNCTION forebay.update_class_turns(v_queue text, v_classes text[]) RETURNS void
LANGUAGE sql SET enable_seqscan = off SET enable_nestloop = on SET enable_hashjoin = off
AS $$
    INSERT INTO forebay.class AS c (queue, cls, turn, open, idle)
    SELECT v_queue, n.cls, coalesce((SELECT s.turn FROM forebay.share AS s WHERE s.queue = v_queue), 0), n.open, n.idle
    FROM (
        -- Not EXISTS: the planner may make a hash of all lanes for that.
        SELECT u.cls, o.open, NOT o.open AND (
            SELECT true FROM forebay.lane AS l WHERE l.queue = v_queue AND l.cls = u.cls AND l.at IS NOT NULL LIMIT 1
        ) IS NULL AS idle
        FROM (SELECT DISTINCT unnest(v_classes) AS cls) AS u CROSS JOIN LATERAL (SELECT (
            SELECT true FROM forebay.lane AS l WHERE l.queue = v_queue AND l.cls = u.cls AND l.at IS NULL LIMIT 1
        ) IS NOT NULL AS open) AS o
    ) AS n
    ON CONFLICT (queue, cls) DO UPDATE SET open = excluded.open, idle = excluded.idle,
        turn = CASE WHEN excluded.open AND NOT c.open THEN greatest(c.turn, excluded.turn) ELSE c.turn END
    WHERE (c.open, c.idle) <> (excluded.open, excluded.idle)
$$;

-- Jobs came to these lanes or left them. A lane without jobs is gone; no job goes before the place of an open one, and with
-- `exact` one stands there, as in a parked one. Where a parked lane has another head, or one is gone, the room at its gates
-- is for others. Queues of which lanes were opened.
CREATE FUNCTION forebay.refresh(v_now bigint, v_queue text, v_lanes text[], exact boolean DEFAULT false) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_fair boolean;
    v_classes text[];
    v_gates text[];
BEGIN
    SELECT q.weight IS NOT NULL INTO v_fair FROM forebay.queue AS q WHERE q.name = v_queue;
    WITH head AS MATERIALIZED (
        SELECT u.lane, l.ctid AS place, l.at, l.rank AS known_rank, l.id AS known_id, r.*
        FROM (SELECT DISTINCT unnest(v_lanes) AS lane) AS u
        LEFT JOIN LATERAL (
            SELECT l.ctid, l.* FROM forebay.lane AS l WHERE l.queue = v_queue AND l.lane = u.lane OFFSET 0
        ) AS l ON true
        LEFT JOIN LATERAL (
            SELECT r.rank, r.last_id, r.cls, r.gates FROM forebay.run AS r
            WHERE r.state = 1 AND r.queue = v_queue AND r.lane = u.lane ORDER BY r.rank, r.last_id LIMIT 1
        ) AS r ON true
    ), gone AS (
        DELETE FROM forebay.lane AS l
        WHERE l.ctid = ANY (ARRAY(SELECT h.place FROM head AS h WHERE h.last_id IS NULL AND h.place IS NOT NULL))
        RETURNING l.cls, l.gates, l.at
    ), moved AS (
        INSERT INTO forebay.lane AS l (queue, lane, cls, rank, id, gates, untils)
        SELECT v_queue, h.lane, CASE WHEN v_fair THEN h.cls ELSE '' END, h.rank, h.last_id, coalesce(h.gates, '{}'),
            (SELECT array_agg(g) FROM unnest(h.gates) AS g WHERE forebay.is_condition(g))
        FROM head AS h
        WHERE h.last_id IS NOT NULL AND (
            h.known_id IS NULL OR (h.rank, h.last_id) < (h.known_rank, h.known_id)
            OR (exact OR h.at IS NOT NULL) AND (h.rank, h.last_id) > (h.known_rank, h.known_id)
        )
        ON CONFLICT (queue, lane) DO UPDATE SET rank = excluded.rank, id = excluded.id
        RETURNING CASE WHEN l.xmax = 0 THEN l.cls END AS cls, l.at
    )
    SELECT array_agg(t.cls) FILTER (WHERE t.cls IS NOT NULL), array_agg(g.name) FILTER (WHERE g.name IS NOT NULL)
    INTO v_classes, v_gates
    FROM (SELECT cls, gates || at AS gates FROM gone UNION ALL SELECT cls, ARRAY[at] FROM moved) AS t
    LEFT JOIN LATERAL unnest(t.gates) AS g (name) ON true;
    IF v_fair AND v_classes IS NOT NULL THEN
        PERFORM forebay.update_class_turns(v_queue, v_classes);
    END IF;
    RETURN CASE WHEN v_gates IS NULL THEN '{}' ELSE forebay.wake(v_now, v_gates) END;
END
$$;

-- The first of a queue's lanes that are parked at a gate, and what their first jobs cost.
CREATE FUNCTION forebay.parked(v_gate text, v_queue text, v_fair boolean, max_lanes bigint)
RETURNS TABLE (turn bigint, lane text, cls text, rank bigint, id bigint, cost integer)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT p.turn, p.lane, p.cls, p.rank, p.id, coalesce((
        SELECT r.cost FROM forebay.run AS r WHERE r.state = 1 AND r.queue = v_queue AND r.lane = p.lane
        ORDER BY r.rank, r.last_id LIMIT 1
    ), 1)
    FROM (
        (
            SELECT c.turn, l.lane, l.cls, l.rank, l.id FROM forebay.lane AS l CROSS JOIN LATERAL (
                SELECT c.turn FROM forebay.class AS c WHERE c.queue = v_queue AND c.cls = l.cls OFFSET 0
            ) AS c
            WHERE v_fair AND l.at = v_gate AND l.queue = v_queue ORDER BY c.turn, l.rank, l.id LIMIT max_lanes
        )
        UNION ALL (
            SELECT 0, l.lane, l.cls, l.rank, l.id FROM forebay.lane AS l
            WHERE NOT v_fair AND l.at = v_gate AND l.queue = v_queue ORDER BY l.rank, l.id LIMIT max_lanes
        )
    ) AS p;
END
$$;

-- These gates may have room: lanes that are parked there are opened, of each queue as many as fit, until a head does not.
-- Queues of which lanes were opened.
CREATE FUNCTION forebay.wake(v_now bigint, v_gates text[]) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_gate text;
    v_queue text;
    v_fair boolean;
    v_number record;
    v_lane record;
    v_room bigint;
    v_opened text[] := '{}';
    v_classes text[];
BEGIN
    FOR v_gate IN
        SELECT g.name FROM (SELECT DISTINCT unnest(v_gates) AS name) AS g
        WHERE (SELECT true FROM forebay.lane AS l WHERE l.at = g.name LIMIT 1) ORDER BY g.name
    LOOP
        v_queue := '';
        LOOP
            SELECT l.queue, q.weight IS NOT NULL INTO v_queue, v_fair FROM forebay.lane AS l
            JOIN forebay.queue AS q ON q.name = l.queue
            WHERE l.at = v_gate AND l.queue > v_queue ORDER BY l.queue LIMIT 1;
            EXIT WHEN NOT FOUND;
            SELECT * INTO v_number FROM forebay.lane_gates(v_now, v_queue, ARRAY[v_gate]);
            v_room := coalesce(v_number.room, 9223372036854775807);
            v_classes := '{}';
            FOR v_lane IN SELECT * FROM forebay.parked(v_gate, v_queue, v_fair, least(greatest(v_room, 0), 4000) + 1) LOOP
                IF least(v_lane.cost, greatest(v_number.slots, 1)) > v_room THEN
                    IF v_number.step > 0 THEN
                        UPDATE forebay.lane AS l SET opens_at = CASE WHEN l.lane = v_lane.lane
                            THEN forebay.opens_at(v_number.tat, v_number.slots, v_lane.cost, v_number.step) END
                        WHERE l.queue = v_queue AND l.lane = ANY (v_lane.lane || ARRAY(
                            SELECT o.lane FROM forebay.lane AS o WHERE o.queue = v_queue AND o.opens_at <= v_now AND o.at = v_gate
                        ));
                    END IF;
                    EXIT;
                END IF;
                UPDATE forebay.lane AS l SET at = NULL, opens_at = NULL WHERE l.queue = v_queue AND l.lane = v_lane.lane;
                v_room := v_room - v_lane.cost;
                v_classes := v_classes || v_lane.cls;
            END LOOP;
            IF v_classes <> '{}' THEN
                v_opened := v_opened || v_queue;
                IF v_fair THEN
                    PERFORM forebay.update_class_turns(v_queue, v_classes);
                END IF;
            END IF;
        END LOOP;
    END LOOP;
    RETURN v_opened;
END
$$;
