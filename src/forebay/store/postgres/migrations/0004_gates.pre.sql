-- Gates: which jobs are let in, and which leave. What they mean is said in `store/gating.py`, by which Python takes new
-- jobs in; here is what happens when a job is settled or its time comes, in the round trip of that verb.

-- Whoever changes gates holds this lock until its transaction ends. Taken before any row is locked.
CREATE FUNCTION forebay.lock_gates() RETURNS void LANGUAGE sql VOLATILE
AS $$ SELECT pg_advisory_xact_lock(1178748737) $$;

-- A job takes the slots of each of its gates (NULL), or of none and parks at the first one that is closed, or where it
-- would pass somebody (its name); who has expired is nobody. `starts`: a claim hands it out, so rates may let it in.
-- `turn`: the gate that has chosen it of all that are parked there.
CREATE FUNCTION forebay.admit(v_now bigint, v_id bigint, v_gates text, starts boolean, turn text) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_gate record;
    v_rank bigint;
    v_queue text;
    v_class text;
    v_open boolean;
BEGIN
    SELECT r.rank, r.queue, r.cls INTO v_rank, v_queue, v_class FROM forebay.run AS r WHERE r.single AND r.last_id = v_id;
    FOR v_gate IN
        SELECT s.value ->> 0 AS name, (s.value ->> 1)::integer AS slots, (s.value ->> 2)::boolean AS ordered,
            coalesce((s.value ->> 4)::integer, 1) AS cost, coalesce((s.value ->> 5)::bigint, 0) AS stamped,
            coalesce((s.value ->> 6)::integer, 0) AS share,
            coalesce(g.held, 0) AS held, coalesce(g.parked, 0) AS parked, coalesce(g.tide, 0) AS tide,
            coalesce(g.step, (s.value ->> 5)::bigint, 0) AS step,
            coalesce(l.slots, g.slots, (s.value ->> 1)::integer) AS room
        FROM json_array_elements(v_gates::json) WITH ORDINALITY AS s (value, place)
        LEFT JOIN forebay.gate AS g ON g.name = s.value ->> 0
        LEFT JOIN forebay.gate_limit AS l ON l.name = s.value ->> 0
        ORDER BY s.place
    LOOP
        IF v_gate.ordered THEN
            v_open := v_gate.held < least(v_gate.room, 1)
                AND (SELECT min(l.id) FROM forebay.line AS l WHERE l.gate = v_gate.name) = v_id;
        ELSIF v_gate.step > 0 THEN
            v_open := starts AND forebay.opens_at(v_gate.tide, v_gate.room, v_gate.cost, v_gate.step) <= v_now;
            IF v_open AND v_gate.parked > 0 AND v_gate.share = 0 THEN
                v_open := coalesce((
                    SELECT (r.rank, r.last_id) >= (v_rank, v_id) FROM forebay.run AS r
                    WHERE left(r.gate, 5) = 'rate/' AND r.gate = v_gate.name AND r.queue = v_queue
                    ORDER BY r.rank, r.last_id LIMIT 1
                ), true);
            END IF;
        ELSE
            v_open := forebay.has_room(v_gate.held, v_gate.cost, v_gate.room);
            IF v_open AND v_gate.parked > 0 AND v_gate.share = 0 THEN
                v_open := coalesce((
                    SELECT (r.rank, r.last_id) >= (v_rank, v_id) FROM forebay.run AS r
                    WHERE r.gate = v_gate.name AND (r.expires_at IS NULL OR r.expires_at > v_now)
                    ORDER BY r.rank, r.last_id LIMIT 1
                ), true);
            END IF;
        END IF;
        IF v_open AND v_gate.share > 0 AND v_gate.parked > 0 AND v_gate.name IS DISTINCT FROM turn THEN
            -- Who starts has had its turn before.
            v_open := CASE WHEN v_gate.step = 0 AND starts THEN true
                ELSE NOT forebay.passes(v_now, v_gate.name, v_queue, v_class, v_rank, v_id) END
                AND (v_gate.step > 0 OR NOT forebay.passes_queue(v_now, v_gate.name, v_queue, v_rank, v_id));
        END IF;
        IF NOT coalesce(v_open, false) THEN
            -- Who would stand behind one like it at a rate that is open need not go there yet.
            IF turn IS NOT NULL AND v_gate.step > 0 AND NOT starts AND v_gate.parked > 0
                AND forebay.opens_at(v_gate.tide, v_gate.room, v_gate.cost, v_gate.step) <= v_now
                AND EXISTS (
                    SELECT FROM json_array_elements(
                        forebay.before(v_now, v_gate.name, v_queue, v_class, v_gate.share > 0, v_rank, v_id)::json
                    ) AS s (value)
                    WHERE s.value ->> 0 = turn AND NOT coalesce((s.value ->> 2)::boolean, false)
                )
            THEN
                UPDATE forebay.gate AS g SET parked = g.parked + 1, opened = false WHERE g.name = turn;
                IF forebay.share_at(v_gates, turn) > 0 THEN
                    PERFORM forebay.join_turns(turn, v_queue, v_class);
                END IF;
                RETURN turn;
            END IF;
            INSERT INTO forebay.gate AS g (name, slots, held, parked, standing, opened, step)
            VALUES (v_gate.name, v_gate.slots, 0, 1, 0, false, v_gate.stamped)
            ON CONFLICT (name) DO UPDATE SET parked = g.parked + 1;
            IF v_gate.share > 0 THEN
                PERFORM forebay.join_turns(v_gate.name, v_queue, v_class);
            END IF;
            IF starts THEN
                PERFORM forebay.look_again(v_gates);
            END IF;
            RETURN v_gate.name;
        END IF;
    END LOOP;
    PERFORM forebay.took_turns(s.value ->> 0, v_queue, v_class, (s.value ->> 6)::integer, 1)
    FROM json_array_elements(v_gates::json) AS s (value)
    WHERE (s.value ->> 6)::integer > 0;
    -- A rate's new tide comes as what the cost is worth from now on, by the stamped step.
    INSERT INTO forebay.gate AS g (name, slots, held, parked, standing, opened, step, tide)
    SELECT s.name, s.slots, CASE WHEN s.step = 0 THEN s.cost ELSE 0 END, 0, 0, false, s.step,
        CASE WHEN s.step = 0 THEN 0 ELSE v_now + s.cost * s.step END
    FROM (
        SELECT s.value ->> 0 AS name, (s.value ->> 1)::integer AS slots, coalesce((s.value ->> 4)::integer, 1) AS cost,
            coalesce((s.value ->> 5)::bigint, 0) AS step
        FROM json_array_elements(v_gates::json) AS s (value)
    ) AS s
    ON CONFLICT (name) DO UPDATE SET held = g.held + excluded.held, tide = CASE WHEN excluded.step = 0 THEN g.tide
        ELSE greatest(g.tide, v_now) + (excluded.tide - v_now) / excluded.step * g.step END;
    IF starts THEN
        PERFORM forebay.look_again(v_gates);
    END IF;
    RETURN NULL;
END
$$;

-- A job has left its rate, or that is closed now: others may go on to there.
CREATE FUNCTION forebay.look_again(v_gates text) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on
AS $$
BEGIN
    UPDATE forebay.gate AS g SET opened = true
    FROM json_array_elements(v_gates::json) AS s (value)
    WHERE g.name = s.value ->> 0 AND coalesce((s.value ->> 5)::bigint, 0) = 0 AND g.parked > 0 AND NOT g.opened
        AND g.held < coalesce((SELECT l.slots FROM forebay.gate_limit AS l WHERE l.name = g.name), g.slots);
END
$$;

-- Who of a queue is the first at a rate, and when it is let in. True: it may start now.
CREATE FUNCTION forebay.repace(v_now bigint, v_gate text, v_queue text) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_rank bigint;
    v_id bigint;
    v_gates text;
    v_class text;
    v_opens_at bigint;
BEGIN
    SELECT r.rank, r.last_id, r.gates, r.cls INTO v_rank, v_id, v_gates, v_class FROM forebay.run AS r
    WHERE left(r.gate, 5) = 'rate/' AND r.gate = v_gate AND r.queue = v_queue ORDER BY r.rank, r.last_id LIMIT 1;
    IF NOT FOUND THEN
        DELETE FROM forebay.pace AS p WHERE p.queue = v_queue AND p.gate = v_gate;
        RETURN false;
    END IF;
    IF forebay.share_at(v_gates, v_gate) > 0 THEN
        v_class := coalesce(forebay.whose_turn(v_now, v_gate, v_queue), v_class);
        SELECT r.rank, r.last_id, r.gates INTO v_rank, v_id, v_gates
        FROM (
            SELECT r.rank, r.last_id, r.gates, 1 AS after FROM forebay.first_of_class(v_now, v_gate, v_queue, v_class) AS r
            UNION ALL
            SELECT v_rank, v_id, v_gates, 2
        ) AS r
        ORDER BY r.after LIMIT 1;
    END IF;
    SELECT forebay.opens_at(g.tide, coalesce(l.slots, g.slots), forebay.cost_at(v_gates, v_gate), g.step) INTO v_opens_at
    FROM forebay.gate AS g LEFT JOIN forebay.gate_limit AS l ON l.name = g.name WHERE g.name = v_gate;
    INSERT INTO forebay.pace AS p
    VALUES (v_queue, v_gate, v_opens_at, v_rank, v_id, coalesce(v_opens_at <= v_now, false), v_class)
    ON CONFLICT (queue, gate) DO UPDATE SET opens_at = excluded.opens_at, rank = excluded.rank, id = excluded.id,
        open = excluded.open, cls = excluded.cls;
    IF coalesce(v_opens_at > v_now, true) THEN
        PERFORM forebay.look_again(v_gates);
    END IF;
    RETURN coalesce(v_opens_at <= v_now, false);
END
$$;

-- The heads of lines whose turn has come are ready, all at once where the line is all that they wait for.
CREATE FUNCTION forebay.let_heads_in(v_now bigint, most integer) RETURNS TABLE (ready integer, queues text[])
LANGUAGE sql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
    WITH opened AS (
        SELECT g.name FROM forebay.gate AS g
        WHERE g.opened AND g.standing > 0 AND g.parked > 0 AND g.held = 0
            AND coalesce((SELECT l.slots FROM forebay.gate_limit AS l WHERE l.name = g.name), g.slots) > 0
        ORDER BY g.name LIMIT most
    ), head AS MATERIALIZED (
        SELECT o.name, r.last_id, r.queue, coalesce((r.gates::json -> 0 ->> 4)::integer, 1) AS cost
        FROM opened AS o, LATERAL (
            SELECT r.* FROM forebay.run AS r
            WHERE r.single AND r.last_id = (SELECT min(l.id) FROM forebay.line AS l WHERE l.gate = o.name) OFFSET 0
        ) AS r
        WHERE r.gate = o.name AND r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now)
            AND json_array_length(r.gates::json) = 1
    ), passed AS (
        UPDATE forebay.gate AS g SET parked = g.parked - 1, held = h.cost, opened = false FROM head AS h WHERE g.name = h.name
    ), let AS (
        UPDATE forebay.run AS r SET gate = NULL, state = 1 FROM head AS h WHERE r.single AND r.last_id = h.last_id
        RETURNING r.queue
    )
    SELECT count(*)::integer, coalesce(array_agg(DISTINCT t.queue), '{}') FROM let AS t
$$;

-- The first of those parked at a gate for whom there is room are ready, all at once as far as it is all they wait for;
-- until there is one whose class takes turns.
CREATE FUNCTION forebay.let_some_in(v_now bigint, v_gate text, v_held integer, v_slots integer, most integer)
RETURNS TABLE (ready integer, queues text[])
LANGUAGE sql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
    WITH first AS (
        SELECT r.last_id, r.rank, r.due_at, r.expires_at, r.gates::json AS gates FROM forebay.run AS r
        WHERE r.gate = v_gate ORDER BY r.rank, r.last_id LIMIT least(most, v_slots - v_held)
    ), costing AS (
        SELECT f.*, coalesce((f.gates -> 0 ->> 4)::integer, 1) AS cost FROM first AS f
    ), fitting AS (
        SELECT c.last_id, c.cost, bool_and(
            json_array_length(c.gates) = 1 AND coalesce((c.gates -> 0 ->> 6)::integer, 0) = 0
            AND c.due_at <= v_now AND (c.expires_at IS NULL OR c.expires_at > v_now)
            AND c.held_then + least(c.cost, greatest(v_slots, 1)) <= v_slots
        ) OVER (ORDER BY c.rank, c.last_id) AS fits
        FROM (
            SELECT c.*, v_held + sum(c.cost) OVER (ORDER BY c.rank, c.last_id) - c.cost AS held_then FROM costing AS c
        ) AS c
    ), head AS MATERIALIZED (
        SELECT f.last_id, f.cost FROM fitting AS f WHERE f.fits
    ), passed AS (
        UPDATE forebay.gate AS g SET parked = g.parked - h.n, held = g.held + h.cost
        FROM (SELECT count(*) AS n, sum(cost) AS cost FROM head) AS h WHERE g.name = v_gate AND h.n > 0
    ), let AS (
        UPDATE forebay.run AS r SET gate = NULL, state = 1 FROM head AS h WHERE r.single AND r.last_id = h.last_id
        RETURNING r.queue
    )
    SELECT count(*)::integer, coalesce(array_agg(DISTINCT t.queue), '{}') FROM let AS t
$$;

-- Who is due is let in or parks, then who is parked where there is room; `most` are tried. So a job that was taken back
-- gets the slot that it gave back, where it is the first in rank. Rates whose time has come are open.
-- Says how many became ready, and in which queues there may be work. Who has expired is passed over.
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
    v_due_at bigint;
    v_class text;
    v_tried integer := 0;
    v_ready integer := 0;
    v_some integer;
    v_queues text[] := '{}';
    v_told text[];
BEGIN
    FOR v_job IN
        SELECT r.last_id, r.queue, r.gates FROM forebay.run AS r
        WHERE r.state = 0 AND r.gate IS NULL AND r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now)
        ORDER BY r.due_at, r.last_id LIMIT most
    LOOP
        v_tried := v_tried + 1;
        v_at := forebay.admit(v_now, v_job.last_id, v_job.gates, false, NULL);
        UPDATE forebay.run AS r SET gate = v_at, state = CASE WHEN v_at IS NULL THEN 1 ELSE 0 END
        WHERE r.single AND r.last_id = v_job.last_id;
        v_ready := v_ready + (v_at IS NULL)::integer;
        IF v_at IS NULL OR (left(v_at, 5) = 'rate/' AND forebay.repace(v_now, v_at, v_job.queue)) THEN
            v_queues := array_append(array_remove(v_queues, v_job.queue), v_job.queue);
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM forebay.gate AS g WHERE g.opened) THEN
        SELECT h.ready, h.queues INTO v_some, v_told FROM forebay.let_heads_in(v_now, most - v_tried) AS h;
        v_tried := v_tried + v_some;
        v_ready := v_ready + v_some;
        v_queues := ARRAY(SELECT DISTINCT unnest(v_queues || v_told));
    END IF;
    WHILE v_tried < most LOOP
        SELECT g.name, g.standing, g.held, coalesce(l.slots, g.slots) AS slots, g.parked > 0 AS parked INTO v_gate
        FROM forebay.gate AS g LEFT JOIN forebay.gate_limit AS l ON l.name = g.name
        WHERE g.opened ORDER BY g.name LIMIT 1;
        EXIT WHEN NOT FOUND;
        v_id := NULL;
        IF v_gate.parked AND v_gate.standing > 0 AND v_gate.held < least(v_gate.slots, 1) THEN
            SELECT r.last_id, r.queue, r.gates INTO v_id, v_queue, v_gates FROM forebay.run AS r
            WHERE r.single AND r.gate = v_gate.name AND r.due_at <= v_now
                AND (r.expires_at IS NULL OR r.expires_at > v_now)
                AND r.last_id = (SELECT min(l.id) FROM forebay.line AS l WHERE l.gate = v_gate.name);
        ELSIF v_gate.parked AND v_gate.standing = 0 AND v_gate.held < v_gate.slots THEN
            SELECT f.ready, f.queues INTO v_some, v_told
            FROM forebay.let_some_in(v_now, v_gate.name, v_gate.held, v_gate.slots, most - v_tried) AS f;
            IF v_some > 0 THEN
                v_tried := v_tried + v_some;
                v_ready := v_ready + v_some;
                v_queues := ARRAY(SELECT DISTINCT unnest(v_queues || v_told));
                PERFORM forebay.forget_turns(v_gate.name)
                WHERE EXISTS (SELECT FROM forebay.turn AS t WHERE t.gate = v_gate.name);
                CONTINUE;
            END IF;
            SELECT r.last_id, r.queue, r.gates, r.due_at, r.cls INTO v_id, v_queue, v_gates, v_due_at, v_class FROM (
                SELECT * FROM forebay.run AS r WHERE r.gate = v_gate.name ORDER BY r.rank, r.last_id LIMIT 100
            ) AS r
            WHERE r.expires_at IS NULL OR r.expires_at > v_now ORDER BY r.rank, r.last_id LIMIT 1;
            IF FOUND AND forebay.share_at(v_gates, v_gate.name) > 0 THEN
                v_class := coalesce(forebay.whose_turn(v_now, v_gate.name, v_queue), v_class);
                v_some := forebay.let_class_in(
                    v_now, v_gate.name, v_queue, v_class, v_gate.held, v_gate.slots, most - v_tried
                );
                IF v_some > 0 THEN
                    v_tried := v_tried + v_some;
                    v_ready := v_ready + v_some;
                    v_queues := array_append(array_remove(v_queues, v_queue), v_queue);
                    CONTINUE;
                END IF;
                SELECT r.last_id, r.gates, r.due_at INTO v_id, v_gates, v_due_at
                FROM forebay.first_of_class(v_now, v_gate.name, v_queue, v_class) AS r;
            END IF;
            IF v_due_at > v_now
                OR NOT forebay.has_room(v_gate.held, forebay.cost_at(v_gates, v_gate.name), v_gate.slots)
            THEN
                v_id := NULL;
            END IF;
        END IF;
        IF v_id IS NULL THEN
            UPDATE forebay.gate AS g SET opened = false WHERE g.name = v_gate.name;
            CONTINUE;
        END IF;
        v_tried := v_tried + 1;
        UPDATE forebay.gate AS g SET parked = g.parked - 1 WHERE g.name = v_gate.name;
        v_at := forebay.admit(v_now, v_id, v_gates, false, v_gate.name);
        UPDATE forebay.run AS r SET gate = v_at, state = CASE WHEN v_at IS NULL THEN 1 ELSE 0 END
        WHERE r.single AND r.last_id = v_id;
        PERFORM forebay.forget_turns(v_gate.name) WHERE EXISTS (SELECT FROM forebay.turn AS t WHERE t.gate = v_gate.name);
        v_ready := v_ready + (v_at IS NULL)::integer;
        IF v_at IS NULL OR (left(v_at, 5) = 'rate/' AND forebay.repace(v_now, v_at, v_queue)) THEN
            v_queues := array_append(array_remove(v_queues, v_queue), v_queue);
        END IF;
    END LOOP;
    FOR v_queue IN
        UPDATE forebay.pace AS p SET open = true
        WHERE (p.queue, p.gate) IN (
            SELECT o.queue, o.gate FROM forebay.pace AS o WHERE NOT o.open AND o.opens_at <= v_now
            ORDER BY o.opens_at LIMIT most
        )
        RETURNING p.queue
    LOOP
        v_queues := array_append(array_remove(v_queues, v_queue), v_queue);
    END LOOP;
    RETURN QUERY SELECT v_ready, v_queues;
END
$$;

-- Jobs that ran give their slots back, and leave their lines if they ended (codes as in `break_out`); a dead one may
-- block its line. A gate that nobody is at any more is forgotten; a rate has nothing to be given back.
-- Dead jobs that block their line are counted in `fallen`.
CREATE FUNCTION forebay.leave_gates(ids bigint[], stamps text[], codes text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    WITH g AS MATERIALIZED (
        SELECT j.id, s.value ->> 0 AS name, coalesce((s.value ->> 4)::integer, 1) AS cost, (s.value ->> 2)::boolean
                AND (j.code IN ('a', 'c') OR (j.code = 'd' AND NOT (s.value ->> 3)::boolean)) AS leaves,
            (s.value ->> 2)::boolean AND j.code = 'd' AND (s.value ->> 3)::boolean AS falls
        FROM unnest(ids, stamps, codes) AS j (id, stamps, code), json_array_elements(j.stamps::json) AS s (value)
        WHERE coalesce((s.value ->> 5)::bigint, 0) = 0
    ), walked AS (
        DELETE FROM forebay.line AS l USING g WHERE g.leaves AND l.gate = g.name AND l.id = g.id RETURNING l.gate
    ), counted AS (
        SELECT g.name, sum(g.cost) AS slots, count(*) FILTER (WHERE g.falls) AS fallen,
            (SELECT count(*) FROM walked AS w WHERE w.gate = g.name) AS walked
        FROM g GROUP BY g.name
    )
    UPDATE forebay.gate AS t
    SET held = t.held - c.slots, standing = t.standing - c.walked, opened = t.opened OR t.parked > 0,
        fallen = t.fallen + c.fallen
    FROM counted AS c WHERE t.name = c.name;
    DELETE FROM forebay.gate AS t
    USING (
        SELECT DISTINCT s.value ->> 0 AS name FROM unnest(stamps) AS j (stamps), json_array_elements(j.stamps::json) AS s (value)
    ) AS g
    WHERE t.name = g.name AND t.held = 0 AND t.parked = 0 AND t.standing = 0 AND t.step = 0;
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

-- Lines of a queue whose head is dead; of those in which some dead stand, `most` are looked at.
CREATE FUNCTION forebay.blocked_lines(v_queue text, most integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT g.name FROM forebay.gate AS g
            WHERE g.fallen > 0 AND g.name COLLATE "C" >= 'order/' || v_queue || '/'
                AND g.name COLLATE "C" < 'order/' || v_queue || '0'
            ORDER BY g.name COLLATE "C" LIMIT most
        ) AS g
        WHERE (
            SELECT e.state FROM forebay.ended AS e
            WHERE e.id = (SELECT min(l.id) FROM forebay.line AS l WHERE l.gate = g.name)
        ) = 4
    );
END
$$;
