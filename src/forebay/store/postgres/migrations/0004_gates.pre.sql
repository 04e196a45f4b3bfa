-- Gates: who is let in, and who leaves. What they mean is told in `store/gating.py`, by which turns in Python take new
-- jobs in; here is what happens when a job is settled or its time comes, in the round trip of that verb.

-- Whoever changes gates holds this lock until its transaction ends. Taken before any row is locked.
CREATE FUNCTION forebay.lock_gates() RETURNS void LANGUAGE sql VOLATILE
AS $$ SELECT pg_advisory_xact_lock(1178748737) $$;

-- A job takes a slot of each of its gates (NULL), or of none and parks at the first one that is closed (its name).
CREATE FUNCTION forebay.admit(v_id bigint, v_gates text) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_gate record;
BEGIN
    FOR v_gate IN
        SELECT s.value ->> 0 AS name, (s.value ->> 1)::integer AS slots, (s.value ->> 2)::boolean AS ordered,
            coalesce(g.held, 0) AS held, coalesce(g.standing, 0) AS standing,
            coalesce(l.slots, g.slots, (s.value ->> 1)::integer) AS room
        FROM json_array_elements(v_gates::json) WITH ORDINALITY AS s (value, place)
        LEFT JOIN forebay.gate AS g ON g.name = s.value ->> 0
        LEFT JOIN forebay.gate_limit AS l ON l.name = s.value ->> 0
        ORDER BY s.place
    LOOP
        IF v_gate.held >= (CASE WHEN v_gate.standing > 0 THEN least(v_gate.room, 1) ELSE v_gate.room END) OR (
            v_gate.ordered AND (SELECT min(l.id) FROM forebay.line AS l WHERE l.gate = v_gate.name) IS DISTINCT FROM v_id
        ) THEN
            INSERT INTO forebay.gate AS g VALUES (v_gate.name, v_gate.slots, 0, 1, 0, false)
            ON CONFLICT (name) DO UPDATE SET parked = g.parked + 1;
            RETURN v_gate.name;
        END IF;
    END LOOP;
    INSERT INTO forebay.gate AS g (name, slots, held, parked, standing, opened)
    SELECT s.value ->> 0, (s.value ->> 1)::integer, 1, 0, 0, false FROM json_array_elements(v_gates::json) AS s (value)
    ON CONFLICT (name) DO UPDATE SET held = g.held + 1;
    RETURN NULL;
END
$$;

-- Who is parked where there is room is let in, then who is due; `most` are tried. Says how many became ready, and in
-- which queues. Who has expired is passed over: it is buried before the next claim, which opens its gate again.
CREATE FUNCTION forebay.let_in(v_now bigint, most integer) RETURNS TABLE (ready integer, queues text[])
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_gate record;
    v_job record;
    v_id bigint;
    v_queue text;
    v_gates text;
    v_at text;
    v_tried integer := 0;
    v_ready integer := 0;
    v_queues text[] := '{}';
BEGIN
    WHILE v_tried < most LOOP
        SELECT g.name, g.standing, g.parked > 0 AND g.held < CASE
            WHEN g.standing > 0 THEN least(coalesce(l.slots, g.slots), 1) ELSE coalesce(l.slots, g.slots) END AS has_room
        INTO v_gate
        FROM forebay.gate AS g LEFT JOIN forebay.gate_limit AS l ON l.name = g.name
        WHERE g.opened ORDER BY g.name LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_id := NULL;
        IF v_gate.has_room AND v_gate.standing > 0 THEN
            SELECT r.last_id, r.queue, r.gates INTO v_id, v_queue, v_gates FROM forebay.run AS r
            WHERE r.single AND r.gate = v_gate.name AND r.due_at <= v_now
                AND (r.expires_at IS NULL OR r.expires_at > v_now)
                AND r.last_id = (SELECT min(l.id) FROM forebay.line AS l WHERE l.gate = v_gate.name);
        ELSIF v_gate.has_room THEN
            SELECT r.last_id, r.queue, r.gates INTO v_id, v_queue, v_gates FROM (
                SELECT * FROM forebay.run AS r WHERE r.gate = v_gate.name ORDER BY r.rank, r.last_id LIMIT 100
            ) AS r
            WHERE r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now)
            ORDER BY r.rank, r.last_id LIMIT 1;
        END IF;
        IF v_id IS NULL THEN
            UPDATE forebay.gate AS g SET opened = false WHERE g.name = v_gate.name;
            CONTINUE;
        END IF;
        v_tried := v_tried + 1;
        UPDATE forebay.gate AS g SET parked = g.parked - 1 WHERE g.name = v_gate.name;
        v_at := forebay.admit(v_id, v_gates);
        IF v_at IS NULL THEN
            UPDATE forebay.run AS r SET state = 1, gate = NULL WHERE r.single AND r.last_id = v_id;
            v_ready := v_ready + 1;
            v_queues := array_append(array_remove(v_queues, v_queue), v_queue);
        ELSE
            UPDATE forebay.run AS r SET gate = v_at WHERE r.single AND r.last_id = v_id;
        END IF;
    END LOOP;
    FOR v_job IN
        SELECT r.last_id, r.queue, r.gates FROM forebay.run AS r
        WHERE r.state = 0 AND r.gate IS NULL AND r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now)
        ORDER BY r.due_at, r.last_id LIMIT most - v_tried
    LOOP
        v_at := forebay.admit(v_job.last_id, v_job.gates);
        UPDATE forebay.run AS r SET gate = v_at, state = CASE WHEN v_at IS NULL THEN 1 ELSE 0 END
        WHERE r.single AND r.last_id = v_job.last_id;
        IF v_at IS NULL THEN
            v_ready := v_ready + 1;
            v_queues := array_append(array_remove(v_queues, v_job.queue), v_job.queue);
        END IF;
    END LOOP;
    RETURN QUERY SELECT v_ready, v_queues;
END
$$;

-- Jobs that ran give their slots back, and leave their lines if they ended (codes as in `break_out`); a dead one may
-- block its line. A gate that nobody is at any more is forgotten.
CREATE FUNCTION forebay.leave_gates(ids bigint[], stamps text[], codes text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    WITH g AS MATERIALIZED (
        SELECT j.id, s.value ->> 0 AS name, (s.value ->> 2)::boolean
                AND (j.code IN ('a', 'c') OR (j.code = 'd' AND NOT (s.value ->> 3)::boolean)) AS leaves
        FROM unnest(ids, stamps, codes) AS j (id, stamps, code), json_array_elements(j.stamps::json) AS s (value)
    ), walked AS (
        DELETE FROM forebay.line AS l USING g WHERE g.leaves AND l.gate = g.name AND l.id = g.id RETURNING l.gate
    ), counted AS (
        SELECT g.name, count(*) AS slots, (SELECT count(*) FROM walked AS w WHERE w.gate = g.name) AS walked
        FROM g GROUP BY g.name
    )
    UPDATE forebay.gate AS t
    SET held = t.held - c.slots, standing = t.standing - c.walked, opened = t.opened OR t.parked > 0
    FROM counted AS c WHERE t.name = c.name;
    DELETE FROM forebay.gate AS t
    USING (
        SELECT DISTINCT s.value ->> 0 AS name FROM unnest(stamps) AS j (stamps), json_array_elements(j.stamps::json) AS s (value)
    ) AS g
    WHERE t.name = g.name AND t.held = 0 AND t.parked = 0 AND t.standing = 0;
END
$$;

-- The gates of jobs that one call settled (their run's number in it, and what became of them): slots are given back and
-- who waits is let in. Workers of other queues than `own` are told.
CREATE FUNCTION forebay.settle_gates(
    v_now bigint, own text[], runs integer[], ids bigint[], stamps text[],
    memo_runs integer[], memo_codes text[], outs json
) RETURNS void
LANGUAGE plpgsql SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_codes text[];
BEGIN
    SELECT array_agg(coalesce(m.code, o.code) ORDER BY u.place) INTO v_codes
    FROM unnest(runs) WITH ORDINALITY AS u (run, place)
    LEFT JOIN unnest(memo_runs, memo_codes) AS m (run, code) ON m.run = u.run
    LEFT JOIN json_to_recordset(outs) AS o (run integer, code text) ON o.run = u.run;
    PERFORM forebay.leave_gates(ids, stamps, v_codes);
    PERFORM pg_notify('forebay', q.name)
    FROM forebay.let_in(v_now, 256) AS i, unnest(i.queues) AS q (name) WHERE q.name <> ALL (own);
END
$$;
