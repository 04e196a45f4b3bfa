-- Costs, and rates: a gate with a `step` lets in by time. `tide`: up to when its starts are paid for. What they mean is
-- told in `core/gate.py` and `store/gating.py`.

ALTER TABLE forebay.gate ADD COLUMN step bigint NOT NULL DEFAULT 0, ADD COLUMN tide bigint NOT NULL DEFAULT 0;
CREATE INDEX gate_ebbed ON forebay.gate (tide) WHERE step > 0 AND parked = 0;

-- A rate at which jobs of a queue are parked: who is first of them, and when it is let in (NULL: the rate is closed).
-- `open`: that time has come. Who is parked at a rate is let in by a claim of its queue alone. `cls`: who is first is of
-- that class.
CREATE TABLE forebay.pace (
    queue text NOT NULL,
    gate text NOT NULL,
    opens_at bigint,
    rank bigint NOT NULL,
    id bigint NOT NULL,
    open boolean NOT NULL,
    cls text NOT NULL,
    PRIMARY KEY (queue, gate)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX pace_gate ON forebay.pace (gate);
CREATE INDEX pace_later ON forebay.pace (opens_at) WHERE NOT open;
CREATE INDEX pace_next ON forebay.pace (queue, opens_at) WHERE NOT open;
CREATE INDEX pace_open ON forebay.pace (queue, rank, id) WHERE open;
CREATE INDEX pace_start ON forebay.pace (queue, cls, rank, id) WHERE open;
CREATE INDEX run_paced ON forebay.run (gate, queue, rank, last_id) WHERE left(gate, 5) = 'rate/';

-- Whether so many slots, of which some are held, have room; who costs more than there are goes alone.
CREATE FUNCTION forebay.has_room(held integer, cost integer, slots integer) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT held + least(cost, greatest(slots, 1)) <= slots $$;

-- When a rate lets a job in; NULL: never, it is closed. The same as core's `opens_at`.
CREATE FUNCTION forebay.opens_at(tide bigint, slots integer, cost integer, step bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN slots > 0 THEN tide - (slots - least(cost, slots)) * step END $$;

-- What a job with these stamps takes of one of its gates.
CREATE FUNCTION forebay.cost_at(gates text, name text) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce((
        SELECT (s.value ->> 4)::integer FROM json_array_elements(gates::json) AS s (value) WHERE s.value ->> 0 = name
    ), 1)
$$;

-- Turns of classes at a gate that they share: who comes first in the ring, and how many it may still take in a turn that
-- has begun. Stamps with a share, their seventh number, take turns there; where the gate's name is empty, it is the turns
-- in which classes are handed out while a rate lets some of them start.
CREATE TABLE forebay.turn (
    gate text NOT NULL,
    queue text NOT NULL,
    cls text NOT NULL,
    place bigint NOT NULL,
    rest integer NOT NULL,
    PRIMARY KEY (gate, queue, cls)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
-- Not of the columns themselves: the planner would take it for the primary key.
CREATE INDEX turn_place ON forebay.turn ((gate || '|' || queue), place);
CREATE INDEX run_turns ON forebay.run (gate, queue, cls, rank, last_id)
WHERE gate IS NOT NULL AND gates ~ ',[1-9][0-9]*]';

-- What a turn of the job's class is worth at one of its gates; 0: the job goes by rank alone.
CREATE FUNCTION forebay.share_at(gates text, name text) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce((
        SELECT (s.value ->> 6)::integer FROM json_array_elements(gates::json) AS s (value) WHERE s.value ->> 0 = name
    ), 0)
$$;

-- The class at the head of a ring, and the place behind its end.
CREATE FUNCTION forebay.head_of_ring(v_gate text, v_queue text) RETURNS text
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
BEGIN
    RETURN (
        SELECT t.cls FROM forebay.turn AS t WHERE t.gate || '|' || t.queue = v_gate || '|' || v_queue
        ORDER BY t.place LIMIT 1
    );
END
$$;

CREATE FUNCTION forebay.end_of_ring(v_gate text, v_queue text) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
BEGIN
    RETURN 1 + coalesce((
        SELECT t.place FROM forebay.turn AS t WHERE t.gate || '|' || t.queue = v_gate || '|' || v_queue
        ORDER BY t.place DESC LIMIT 1
    ), 0);
END
$$;

-- A class that has no place in a ring comes last.
CREATE FUNCTION forebay.join_turns(v_gate text, v_queue text, v_class text) RETURNS void LANGUAGE sql
AS $$
    INSERT INTO forebay.turn VALUES (v_gate, v_queue, v_class, forebay.end_of_ring(v_gate, v_queue), 0)
    ON CONFLICT DO NOTHING
$$;

-- So many of a class had their turn; `weight` is what a new one is worth.
CREATE FUNCTION forebay.took_turns(v_gate text, v_queue text, v_class text, weight integer, taken integer) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
BEGIN
    UPDATE forebay.turn AS t
    SET rest = n.rest, place = CASE WHEN n.rest > 0 THEN t.place ELSE forebay.end_of_ring(v_gate, v_queue) END
    FROM (
        SELECT greatest(0, CASE WHEN o.rest > 0 THEN o.rest ELSE weight END - taken) AS rest FROM forebay.turn AS o
        WHERE o.gate = v_gate AND o.queue = v_queue AND o.cls = v_class
    ) AS n
    WHERE t.gate = v_gate AND t.queue = v_queue AND t.cls = v_class;
END
$$;

-- The first of those of a class that are parked at a gate where classes take turns; who has expired is nobody.
CREATE FUNCTION forebay.first_of_class(v_now bigint, v_gate text, v_queue text, v_class text) RETURNS SETOF forebay.run
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
BEGIN
    RETURN QUERY SELECT r.* FROM forebay.run AS r
    WHERE r.gate = v_gate AND r.gates ~ ',[1-9][0-9]*]' AND r.queue = v_queue AND r.cls = v_class
        AND (r.expires_at IS NULL OR r.expires_at > v_now)
    ORDER BY r.rank, r.last_id LIMIT 1;
END
$$;

-- The class whose turn it is at a gate; one of which nobody is there loses its place.
CREATE FUNCTION forebay.whose_turn(v_now bigint, v_gate text, v_queue text) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_class text;
BEGIN
    LOOP
        v_class := forebay.head_of_ring(v_gate, v_queue);
        IF v_class IS NULL THEN
            RETURN NULL;
        END IF;
        PERFORM 1 FROM forebay.first_of_class(v_now, v_gate, v_queue, v_class);
        IF FOUND THEN
            RETURN v_class;
        END IF;
        DELETE FROM forebay.turn AS t WHERE t.gate = v_gate AND t.queue = v_queue AND t.cls = v_class;
    END LOOP;
END
$$;

-- Whether a job would pass somebody at a gate where classes take turns: of another class that has its turn, or of its
-- own.
CREATE FUNCTION forebay.passes(
    v_now bigint, v_gate text, v_queue text, v_class text, v_rank bigint, v_id bigint
) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN coalesce(forebay.whose_turn(v_now, v_gate, v_queue) <> v_class, false)
        OR forebay.before(v_now, v_gate, v_queue, v_class, true, v_rank, v_id) IS NOT NULL;
END
$$;

-- Whether it would pass somebody of another queue.
CREATE FUNCTION forebay.passes_queue(v_now bigint, v_gate text, v_queue text, v_rank bigint, v_id bigint) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN coalesce((
        SELECT r.queue <> v_queue AND (r.rank, r.last_id) < (v_rank, v_id) FROM forebay.run AS r
        WHERE r.gate = v_gate AND (r.expires_at IS NULL OR r.expires_at > v_now)
        ORDER BY r.rank, r.last_id LIMIT 1
    ), false);
END
$$;

-- The gates of the first of those parked before a job, of its class, or of its queue at a rate; NULL: there is nobody.
CREATE FUNCTION forebay.before(
    v_now bigint, v_gate text, v_queue text, v_class text, classed boolean, v_rank bigint, v_id bigint
) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    IF classed THEN
        RETURN (
            SELECT CASE WHEN (r.rank, r.last_id) < (v_rank, v_id) THEN r.gates END
            FROM forebay.first_of_class(v_now, v_gate, v_queue, v_class) AS r
        );
    END IF;
    RETURN (
        SELECT CASE WHEN (r.rank, r.last_id) < (v_rank, v_id) THEN r.gates END FROM forebay.run AS r
        WHERE left(r.gate, 5) = 'rate/' AND r.gate = v_gate AND r.queue = v_queue ORDER BY r.rank, r.last_id LIMIT 1
    );
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

-- Where nobody is parked any more, nobody has a turn.
CREATE FUNCTION forebay.forget_turns(v_gate text) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
BEGIN
    PERFORM 1 FROM forebay.gate AS g WHERE g.name = v_gate AND g.parked > 0;
    IF NOT FOUND THEN
        DELETE FROM forebay.turn AS t WHERE t.gate = v_gate;
    END IF;
END
$$;

-- The class whose turn it is gives as many as its turn and the room allow, all at once as far as it is all they wait for.
CREATE FUNCTION forebay.let_class_in(
    v_now bigint, v_gate text, v_queue text, v_class text, v_held integer, v_slots integer, most integer
) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_weight integer;
    v_rest integer;
    v_ready integer;
BEGIN
    SELECT forebay.share_at(r.gates, v_gate) INTO v_weight FROM forebay.first_of_class(v_now, v_gate, v_queue, v_class) AS r;
    SELECT CASE WHEN t.rest > 0 THEN t.rest ELSE v_weight END INTO v_rest FROM forebay.turn AS t
    WHERE t.gate = v_gate AND t.queue = v_queue AND t.cls = v_class;
    WITH first AS (
        SELECT r.last_id, r.rank, r.due_at, r.expires_at, r.gates::json AS gates FROM forebay.run AS r
        WHERE r.gate = v_gate AND r.gates ~ ',[1-9][0-9]*]' AND r.queue = v_queue AND r.cls = v_class
        ORDER BY r.rank, r.last_id LIMIT least(most, v_slots - v_held, v_rest)
    ), fitting AS (
        SELECT c.last_id, c.cost, bool_and(
            json_array_length(c.gates) = 1 AND c.due_at <= v_now AND (c.expires_at IS NULL OR c.expires_at > v_now)
            AND forebay.has_room((v_held + c.upto - c.cost)::integer, c.cost, v_slots)
        ) OVER (ORDER BY c.rank, c.last_id) AS fits
        FROM (
            SELECT f.*, (f.gates -> 0 ->> 4)::integer AS cost,
                sum((f.gates -> 0 ->> 4)::integer) OVER (ORDER BY f.rank, f.last_id) AS upto
            FROM first AS f
        ) AS c
    ), head AS MATERIALIZED (
        SELECT f.last_id, f.cost FROM fitting AS f WHERE f.fits
    ), passed AS (
        UPDATE forebay.gate AS g SET parked = g.parked - h.n, held = g.held + h.cost
        FROM (SELECT count(*) AS n, sum(cost) AS cost FROM head) AS h WHERE g.name = v_gate AND h.n > 0
    ), let AS (
        UPDATE forebay.run AS r SET gate = NULL, state = 1 FROM head AS h WHERE r.single AND r.last_id = h.last_id
        RETURNING r.last_id
    )
    SELECT count(*) INTO v_ready FROM let;
    IF v_ready > 0 THEN
        PERFORM forebay.took_turns(v_gate, v_queue, v_class, v_weight, v_ready);
        PERFORM forebay.forget_turns(v_gate);
    END IF;
    RETURN v_ready;
END
$$;

-- A job takes the slots of each of its gates (NULL), or of none and parks at the first one that is closed, or where it
-- would pass somebody (its name); who has expired is nobody. `starts`: a claim hands it out, so rates may let it in.
-- `turn`: the gate that has chosen it of all that are parked there.
DROP FUNCTION forebay.admit(bigint, text);
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

-- The same of those parked at the one rate of a queue that lets somebody in, for a claim that starts them.
CREATE FUNCTION forebay.let_some_start(v_now bigint, v_gate text, v_queue text, most integer) RETURNS integer
LANGUAGE sql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
    WITH rate AS MATERIALIZED (
        SELECT g.tide, g.step, coalesce(l.slots, g.slots) AS slots
        FROM forebay.gate AS g LEFT JOIN forebay.gate_limit AS l ON l.name = g.name WHERE g.name = v_gate
    ), first AS (
        SELECT r.last_id, r.rank, r.gates::json AS gates FROM forebay.run AS r
        WHERE left(r.gate, 5) = 'rate/' AND r.gate = v_gate AND r.queue = v_queue ORDER BY r.rank, r.last_id LIMIT most
    ), costing AS (
        SELECT f.*, coalesce((f.gates -> 0 ->> 4)::integer, 1) AS cost FROM first AS f
    ), fitting AS (
        SELECT c.last_id, c.cost, bool_and(json_array_length(c.gates) = 1
            AND coalesce((c.gates -> 0 ->> 6)::integer, 0) = 0 AND coalesce(forebay.opens_at(
            CASE WHEN c.spent = 0 THEN t.tide ELSE greatest(t.tide, v_now) + c.spent * t.step END, t.slots, c.cost, t.step
        ) <= v_now, false)) OVER (ORDER BY c.rank, c.last_id) AS fits
        FROM rate AS t, (
            SELECT c.*, sum(c.cost) OVER (ORDER BY c.rank, c.last_id) - c.cost AS spent FROM costing AS c
        ) AS c
    ), head AS MATERIALIZED (
        SELECT f.last_id, f.cost FROM fitting AS f WHERE f.fits
    ), passed AS (
        UPDATE forebay.gate AS g SET parked = g.parked - h.n, tide = greatest(g.tide, v_now) + h.cost * g.step
        FROM (SELECT count(*) AS n, sum(cost) AS cost FROM head) AS h WHERE g.name = v_gate AND h.n > 0
    ), let AS (
        UPDATE forebay.run AS r SET gate = NULL, state = 1 FROM head AS h WHERE r.single AND r.last_id = h.last_id
        RETURNING r.queue
    )
    SELECT count(*)::integer FROM let AS t
$$;

-- Who is due is let in or parks, then who is parked where there is room; `most` are tried. So a job that was taken back
-- gets the slot that it gave back, where it is the first in rank. Rates whose time has come are open.
-- Says how many became ready, and in which queues there may be work. Who has expired is passed over, as in 0004.
CREATE OR REPLACE FUNCTION forebay.let_in(v_now bigint, most integer) RETURNS TABLE (ready integer, queues text[])
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

-- A claim wants so many of a queue: what is not ready is let in at its rates, first in rank first. `tries`: so many whom
-- another gate holds are looked at in passing; returns how many are left.
CREATE FUNCTION forebay.let_start(v_now bigint, v_queue text, v_class text, wanted integer, tries integer)
RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_gate text;
    v_id bigint;
    v_gates text;
    v_at text;
    v_need integer;
BEGIN
    PERFORM 1 FROM forebay.queue AS q WHERE q.name = v_queue AND q.paused_until > v_now;
    IF FOUND OR NOT EXISTS (SELECT FROM forebay.pace AS p WHERE p.open AND p.queue = v_queue) THEN
        RETURN tries;
    END IF;
    IF v_class IS NULL THEN
        SELECT wanted - coalesce(sum(f.n), 0) INTO v_need FROM (
            SELECT r.n FROM forebay.run AS r WHERE r.state = 1 AND r.queue = v_queue LIMIT wanted
        ) AS f;
    ELSE
        SELECT wanted - coalesce(sum(f.n), 0) INTO v_need FROM (
            SELECT r.n FROM forebay.run AS r WHERE r.state = 1 AND r.queue = v_queue AND r.cls = v_class LIMIT wanted
        ) AS f;
    END IF;
    -- One rate, as most queues have it.
    SELECT min(p.gate) INTO v_gate FROM forebay.pace AS p WHERE p.open AND p.queue = v_queue HAVING count(*) = 1;
    IF FOUND AND v_need > 0 AND v_class IS NULL THEN
        v_need := v_need - forebay.let_some_start(v_now, v_gate, v_queue, v_need);
        PERFORM forebay.forget_turns(v_gate) WHERE EXISTS (SELECT FROM forebay.turn AS t WHERE t.gate = v_gate);
        PERFORM forebay.repace(v_now, p.gate, p.queue) FROM forebay.pace AS p WHERE p.gate = v_gate;
    END IF;
    WHILE v_need > 0 AND tries > 0 LOOP
        IF v_class IS NULL THEN
            SELECT p.gate, p.id INTO v_gate, v_id FROM forebay.pace AS p
            WHERE p.open AND p.queue = v_queue ORDER BY p.rank, p.id LIMIT 1;
        ELSE
            SELECT p.gate, p.id INTO v_gate, v_id FROM forebay.pace AS p
            WHERE p.open AND p.queue = v_queue AND p.cls = v_class ORDER BY p.rank, p.id LIMIT 1;
        END IF;
        EXIT WHEN NOT FOUND;
        SELECT r.gates INTO v_gates FROM forebay.run AS r WHERE r.single AND r.last_id = v_id AND r.gate = v_gate;
        IF NOT FOUND THEN
            tries := tries - 1;
            PERFORM forebay.repace(v_now, v_gate, v_queue);
            CONTINUE;
        END IF;
        UPDATE forebay.gate AS g SET parked = g.parked - 1 WHERE g.name = v_gate;
        v_at := forebay.admit(v_now, v_id, v_gates, true, v_gate);
        UPDATE forebay.run AS r SET gate = v_at, state = CASE WHEN v_at IS NULL THEN 1 ELSE 0 END
        WHERE r.single AND r.last_id = v_id;
        PERFORM forebay.forget_turns(v_gate) WHERE EXISTS (SELECT FROM forebay.turn AS t WHERE t.gate = v_gate);
        IF v_at IS NULL THEN
            v_need := v_need - 1;
            PERFORM forebay.repace(v_now, p.gate, p.queue)
            FROM json_array_elements(v_gates::json) AS s (value), forebay.pace AS p
            WHERE (s.value ->> 5)::bigint > 0 AND p.gate = s.value ->> 0;
        ELSE
            tries := tries - 1;
            PERFORM forebay.repace(v_now, v_gate, v_queue);
            IF v_at <> v_gate AND left(v_at, 5) = 'rate/' THEN
                PERFORM forebay.repace(v_now, v_at, v_queue);
            END IF;
        END IF;
        IF EXISTS (SELECT FROM forebay.gate AS g WHERE g.opened) THEN
            PERFORM forebay.let_in(v_now, 256);
        END IF;
    END LOOP;
    RETURN tries;
END
$$;

-- A claim wants so many of a queue whose classes take turns, one of whose rates is open: one by one, with what is ready
-- and with what rates let in. Which class gives each. NULL: no rate is open, so the turns are not told here.
CREATE FUNCTION forebay.start_by_turns(
    v_now bigint, v_queue text, wanted integer, weights json, standard integer
) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    v_turns text[] := '{}';
    v_given jsonb := '{}';
    v_class text;
    v_had integer;
    v_tries integer := 64;
BEGIN
    PERFORM 1 FROM forebay.queue AS q WHERE q.name = v_queue AND q.paused_until > v_now;
    IF FOUND OR NOT EXISTS (SELECT FROM forebay.pace AS p WHERE p.open AND p.queue = v_queue) THEN
        RETURN NULL;
    END IF;
    PERFORM forebay.ripen_classes(v_now, ARRAY[v_queue]);
    PERFORM forebay.join_workable(v_queue);
    WHILE v_tries > 0 AND cardinality(v_turns) < wanted LOOP
        v_class := forebay.next_class(v_now, v_queue, v_given);
        EXIT WHEN v_class IS NULL;
        v_had := coalesce((v_given ->> v_class)::integer, 0);
        IF forebay.ready_of(v_now, v_queue, v_class, v_had + 1) <= v_had THEN
            v_tries := forebay.let_start(v_now, v_queue, v_class, v_had + 1, v_tries);
        END IF;
        PERFORM forebay.took_turns('', v_queue, v_class, coalesce((weights ->> v_class)::integer, standard), 1);
        IF forebay.ready_of(v_now, v_queue, v_class, v_had + 1) > v_had THEN
            v_given := jsonb_set(v_given, ARRAY[v_class], to_jsonb(v_had + 1));
            v_turns := array_append(v_turns, v_class);
        ELSE
            v_tries := v_tries - 1;
        END IF;
    END LOOP;
    DELETE FROM forebay.turn AS t WHERE t.gate = '' AND t.queue = v_queue
        AND NOT EXISTS (SELECT FROM forebay.pace AS p WHERE p.open AND p.queue = v_queue);
    RETURN v_turns;
END
$$;

-- Classes of a queue that have ready jobs, or somebody whom a rate lets start, take part in its turns.
CREATE FUNCTION forebay.join_workable(v_queue text) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    WITH RECURSIVE ready AS (
        (SELECT r.cls FROM forebay.run AS r WHERE r.state = 1 AND r.queue = v_queue ORDER BY r.cls LIMIT 1)
        UNION ALL
        SELECT (
            SELECT r.cls FROM forebay.run AS r WHERE r.state = 1 AND r.queue = v_queue AND r.cls > ready.cls
            ORDER BY r.cls LIMIT 1
        )
        FROM ready WHERE ready.cls IS NOT NULL
    ), starting AS (
        (SELECT p.cls FROM forebay.pace AS p WHERE p.open AND p.queue = v_queue ORDER BY p.cls LIMIT 1)
        UNION ALL
        SELECT (
            SELECT p.cls FROM forebay.pace AS p WHERE p.open AND p.queue = v_queue AND p.cls > starting.cls
            ORDER BY p.cls LIMIT 1
        )
        FROM starting WHERE starting.cls IS NOT NULL
    )
    INSERT INTO forebay.turn
    SELECT '', v_queue, w.cls, row_number() OVER (ORDER BY w.cls) + forebay.end_of_ring('', v_queue), 0
    FROM (SELECT cls FROM ready UNION SELECT cls FROM starting) AS w
    WHERE w.cls IS NOT NULL
        AND NOT EXISTS (SELECT FROM forebay.turn AS t WHERE t.gate = '' AND t.queue = v_queue AND t.cls = w.cls);
END
$$;

-- How many ready jobs a class has, as far as it matters.
CREATE FUNCTION forebay.ready_of(v_now bigint, v_queue text, v_class text, most integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
BEGIN
    RETURN (
        SELECT coalesce(sum(f.n), 0) FROM (
            SELECT r.n FROM forebay.run AS r WHERE r.state = 1 AND r.queue = v_queue AND r.cls = v_class
                AND (r.expires_at IS NULL OR r.expires_at > v_now)
            ORDER BY r.rank, r.last_id LIMIT most
        ) AS f
    );
END
$$;

-- Whose turn it is, of those that have more ready jobs than they have given, or somebody whom a rate lets start.
CREATE FUNCTION forebay.next_class(v_now bigint, v_queue text, given jsonb) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_class text;
    v_had integer;
    v_joined boolean := false;
BEGIN
    LOOP
        v_class := forebay.head_of_ring('', v_queue);
        IF v_class IS NOT NULL THEN
            v_had := coalesce((given ->> v_class)::integer, 0);
            IF forebay.ready_of(v_now, v_queue, v_class, v_had + 1) > v_had OR EXISTS (
                SELECT FROM forebay.pace AS p WHERE p.open AND p.queue = v_queue AND p.cls = v_class
            ) THEN
                RETURN v_class;
            END IF;
            DELETE FROM forebay.turn AS t WHERE t.gate = '' AND t.queue = v_queue AND t.cls = v_class;
        ELSIF v_joined THEN
            RETURN NULL;
        END IF;
        -- Who started made room for another class at his rate, which may not have a place yet.
        v_joined := v_class IS NULL;
        PERFORM forebay.join_turns('', v_queue, p.cls) FROM (
            SELECT p.cls FROM forebay.pace AS p WHERE p.open AND p.queue = v_queue ORDER BY p.rank, p.id LIMIT 16
        ) AS p;
    END LOOP;
END
$$;

-- Jobs that ran give their slots back, and leave their lines if they ended (codes as in `break_out`); a dead one may
-- block its line. A gate that nobody is at any more is forgotten; a rate has nothing to be given back.
CREATE OR REPLACE FUNCTION forebay.leave_gates(ids bigint[], stamps text[], codes text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    WITH g AS MATERIALIZED (
        SELECT j.id, s.value ->> 0 AS name, coalesce((s.value ->> 4)::integer, 1) AS cost, (s.value ->> 2)::boolean
                AND (j.code IN ('a', 'c') OR (j.code = 'd' AND NOT (s.value ->> 3)::boolean)) AS leaves
        FROM unnest(ids, stamps, codes) AS j (id, stamps, code), json_array_elements(j.stamps::json) AS s (value)
        WHERE coalesce((s.value ->> 5)::bigint, 0) = 0
    ), walked AS (
        DELETE FROM forebay.line AS l USING g WHERE g.leaves AND l.gate = g.name AND l.id = g.id RETURNING l.gate
    ), counted AS (
        SELECT g.name, sum(g.cost) AS slots, (SELECT count(*) FROM walked AS w WHERE w.gate = g.name) AS walked
        FROM g GROUP BY g.name
    )
    UPDATE forebay.gate AS t
    SET held = t.held - c.slots, standing = t.standing - c.walked, opened = t.opened OR t.parked > 0
    FROM counted AS c WHERE t.name = c.name;
    DELETE FROM forebay.gate AS t
    USING (
        SELECT DISTINCT s.value ->> 0 AS name FROM unnest(stamps) AS j (stamps), json_array_elements(j.stamps::json) AS s (value)
    ) AS g
    WHERE t.name = g.name AND t.held = 0 AND t.parked = 0 AND t.standing = 0 AND t.step = 0;
END
$$;

-- As in 0002, and there is something to be looked after where a rate lets somebody in.
CREATE OR REPLACE FUNCTION forebay.claim(
    at bigint, tended boolean, me integer, span bigint,
    names text[], versions integer[], classes text[], counts integer[], rows integer[], leads bigint[], floors bigint[]
) RETURNS SETOF forebay.claimed
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
    v_until bigint := v_now + span;
    v_need integer;
    v_rows integer;
    v_got integer;
    v_whole integer;
    v_class text;
    v_beat boolean;
    v_from bigint;
    v_to bigint;
    v_singles boolean[];
    v_lasts bigint[];
    v_sizes integer[];
    v_part forebay.claimed;
    v_told_singles boolean[] := '{}';
    v_told_lasts bigint[] := '{}';
BEGIN
    IF NOT tended AND (
        EXISTS (SELECT FROM forebay.run AS r WHERE r.state = 0 AND r.gate IS NULL AND r.due_at <= v_now)
        OR EXISTS (SELECT FROM forebay.gate AS g WHERE g.opened)
        OR EXISTS (
            SELECT FROM forebay.run AS r WHERE r.expires_at IS NOT NULL AND r.state <> 2 AND r.expires_at <= v_now
        )
        OR EXISTS (SELECT FROM forebay.pace AS p WHERE NOT p.open AND p.opens_at <= v_now)
        OR EXISTS (SELECT FROM forebay.pace AS p WHERE p.open AND p.queue = ANY (names))
        OR EXISTS (SELECT FROM forebay.inbox)
    ) THEN
        RETURN NEXT forebay.nothing(1, v_now);
        RETURN;
    END IF;
    PERFORM 1 FROM unnest(names, versions) AS u (name, version) LEFT JOIN forebay.queue AS q ON q.name = u.name
    WHERE coalesce(q.version, 0) <> u.version;
    IF FOUND THEN
        RETURN NEXT forebay.nothing(2, v_now);
        RETURN;
    END IF;
    PERFORM 1 FROM unnest(names, classes) AS u (name, class)
    WHERE u.class IS NULL AND (
        EXISTS (SELECT FROM forebay.run AS r WHERE r.state = 1 AND r.queue = u.name AND r.cls > '')
        OR EXISTS (SELECT FROM forebay.run AS r WHERE r.state = 3 AND r.queue = u.name AND r.cls > '')
    );
    IF FOUND THEN
        RETURN NEXT forebay.nothing(3, v_now);
        RETURN;
    END IF;
    -- A heartbeat that reaches beyond the new leases must not make them last longer than they say.
    SELECT h.until <= v_until INTO v_beat FROM forebay.holder AS h WHERE h.id = me;
    v_beat := coalesce(v_beat, false);
    IF cardinality(array_remove(classes, NULL)) > 1 THEN
        FOR v_part IN
            SELECT * FROM forebay.take_whole(v_now, v_until, me, v_beat, names, classes, counts, rows)
        LOOP
            RETURN NEXT v_part;
            v_told_singles := v_told_singles || v_part.single;
            v_told_lasts := v_told_lasts || v_part.last_id;
            counts[v_part.want] := counts[v_part.want] - v_part.n;
        END LOOP;
    END IF;
    FOR i IN 1 .. cardinality(names) LOOP
        CONTINUE WHEN counts[i] = 0;
        PERFORM 1 FROM forebay.queue AS q WHERE q.name = names[i] AND q.paused_until > v_now;
        CONTINUE WHEN FOUND;
        v_need := counts[i];
        v_class := coalesce(classes[i], '');
        IF EXISTS (
            SELECT FROM forebay.run AS r
            WHERE r.state = 3 AND r.queue = names[i] AND r.cls = v_class AND r.due_at <= v_now
        ) THEN
            PERFORM forebay.ripen(v_now, names[i], v_class, 1000);
        END IF;
        v_rows := least(rows[i], v_need);
        v_from := coalesce(leads[i], -9223372036854775808);
        v_to := CASE WHEN floors[i] IS NULL THEN 9223372036854775807 ELSE 0 END;
        WHILE v_need > 0 LOOP
            SELECT array_agg(c.single), array_agg(c.last_id), array_agg(c.n) INTO v_singles, v_lasts, v_sizes
            FROM (
                SELECT r.single, r.last_id, r.n FROM forebay.run AS r
                WHERE r.state = 1 AND r.queue = names[i] AND r.cls = v_class AND r.rank >= v_from AND r.rank < v_to
                    AND (r.expires_at IS NULL OR r.expires_at > v_now)
                ORDER BY r.rank, r.last_id LIMIT v_rows FOR UPDATE SKIP LOCKED
            ) AS c;
            v_got := coalesce(cardinality(v_lasts), 0);
            v_whole := 0;
            WHILE v_whole < v_got AND v_sizes[v_whole + 1] <= v_need LOOP
                v_whole := v_whole + 1;
                v_need := v_need - v_sizes[v_whole];
            END LOOP;
            IF v_whole > 0 THEN
                RETURN QUERY
                UPDATE forebay.run AS r
                SET state = 2, attempt = r.attempt + 1, delivery = r.delivery + 1, holder = me, beat = v_beat,
                    claimed_at = greatest(v_now, r.due_at), lease_until = v_until, merges = false
                FROM unnest(v_singles[:v_whole], v_lasts[:v_whole]) AS u (single, last_id)
                WHERE r.single = ANY (v_singles) AND r.last_id = ANY (v_lasts)
                    AND r.single = u.single AND r.last_id = u.last_id
                RETURNING 0, v_now, i, r.rank, r.single, r.last_id, r.n, r.size, r.state, r.queue, r.kind, r.due_at,
                    r.enqueued_at, r.delivery, r.attempt, r.max_attempts, r.claimed_at, r.lease_until,
                    r.expires_at, r.gates IS NOT NULL, r.errors, r.facts, r.bodies, NULL::text, r.asked::text,
                    NULL::text, r.beat;
                v_told_singles := v_told_singles || v_singles[:v_whole];
                v_told_lasts := v_told_lasts || v_lasts[:v_whole];
            END IF;
            IF v_whole < v_got AND v_need > 0 THEN
                v_part := forebay.split(
                    v_singles[v_whole + 1], v_lasts[v_whole + 1], v_need, me, v_now, v_until, v_beat, i
                );
                RETURN NEXT v_part;
                v_told_singles := v_told_singles || v_part.single;
                v_told_lasts := v_told_lasts || v_part.last_id;
                v_need := 0;
            END IF;
            IF v_got < v_rows THEN
                EXIT WHEN v_to > 0;
                v_from := floors[i];
                v_to := 9223372036854775807;
            END IF;
            v_rows := least(v_need, v_rows * 4);
        END LOOP;
    END LOOP;
    -- What fell due and was made ready by others after this call began is taken no earlier than it was due.
    IF cardinality(v_told_lasts) > 0 THEN
        INSERT INTO forebay.ledger (at, verb, owner, spans)
        SELECT greatest(v_now, max(r.due_at)), 'claim', (SELECT h.owner FROM forebay.holder AS h WHERE h.id = me), json_agg(json_build_array(
            'claimed', r.last_id - r.n + 1, r.n, r.queue, r.kind, r.delivery, r.attempt, 0, r.enqueued_at, r.due_at,
            r.claimed_at, v_until, CASE WHEN r.facts IS NOT NULL THEN forebay.kinds(r.facts, r.size - r.n, r.n) END
        ) ORDER BY u.place)
        FROM forebay.ledger_rule AS l, unnest(v_told_singles, v_told_lasts) WITH ORDINALITY AS u (single, last_id, place)
        JOIN forebay.run AS r ON r.single = u.single AND r.last_id = u.last_id
        WHERE l.recording AND r.single = ANY (v_told_singles) AND r.last_id = ANY (v_told_lasts)
        HAVING count(*) > 0;
    END IF;
END
$$;

-- As in 0002, and rates whose time has come.
CREATE OR REPLACE FUNCTION forebay.stirs(v_now bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT EXISTS (SELECT FROM forebay.run WHERE state = 0 AND gate IS NULL AND due_at <= v_now)
            OR EXISTS (SELECT FROM forebay.gate WHERE opened)
            OR EXISTS (SELECT FROM forebay.run WHERE expires_at IS NOT NULL AND state <> 2 AND expires_at <= v_now)
            OR EXISTS (SELECT FROM forebay.inbox)
            OR EXISTS (SELECT FROM forebay.pace WHERE NOT open AND opens_at <= v_now)
    );
END
$$;

-- All that is due becomes ready in one statement; and when the next rate lets somebody in.
CREATE OR REPLACE FUNCTION forebay.promote(at bigint, most integer) RETURNS TABLE (ready bigint, next_due bigint, stirs boolean, stamp bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
    v_left integer;
    v_whole tid[];
    v_part tid;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT r.ctid AS place, r.n, r.due_at, r.last_id FROM forebay.run AS r
        WHERE r.state = 3 AND r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now)
        ORDER BY r.due_at, r.last_id LIMIT most FOR UPDATE SKIP LOCKED
    ), counted AS (
        SELECT d.place, d.n, sum(d.n) OVER (ORDER BY d.due_at, d.last_id) AS so_far FROM due AS d
    )
    SELECT array_agg(c.place) FILTER (WHERE c.so_far <= most),
        most - coalesce(sum(c.n) FILTER (WHERE c.so_far <= most), 0),
        (array_agg(c.place) FILTER (WHERE c.so_far > most AND c.so_far - c.n < most))[1]
    INTO v_whole, v_left, v_part FROM counted AS c;
    UPDATE forebay.run AS r SET state = 1 WHERE r.ctid = ANY (v_whole);
    IF v_part IS NOT NULL THEN
        WITH rest AS (
            UPDATE forebay.run AS r SET n = r.n - v_left WHERE r.ctid = v_part RETURNING r.*
        )
        INSERT INTO forebay.run (
            last_id, rank, due_at, enqueued_at, rank_base, n, size, delivery, attempt, max_attempts, state, single,
            rank_timed, queue, cls, kind, facts, bodies
        )
        SELECT r.last_id - r.n, r.rank, r.due_at, r.enqueued_at, r.rank_base, v_left, v_left, r.delivery, r.attempt,
            r.max_attempts, 1, false, r.rank_timed, r.queue, r.cls, r.kind,
            forebay.slice(r.facts, r.size - r.n - v_left, v_left),
            forebay.slice(r.bodies, r.size - r.n - v_left, v_left)
        FROM rest AS r;
        v_left := 0;
    END IF;
    RETURN QUERY SELECT (most - v_left)::bigint,
        least(
            (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 3),
            (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 0 AND r.gate IS NULL),
            (SELECT min(p.opens_at) FROM forebay.pace AS p WHERE NOT p.open)
        ),
        forebay.stirs(v_now)
            OR EXISTS (SELECT FROM forebay.ended AS e WHERE e.kept_until IS NOT NULL AND e.kept_until <= v_now)
            OR EXISTS (SELECT FROM forebay.key AS k WHERE k.until <= v_now),
        v_now;
END
$$;

-- As in 0002, and there is something to be looked after where a rate lets somebody in.
CREATE OR REPLACE FUNCTION forebay.classes(at bigint, tended boolean, names text[], versions integer[], mosts integer[])
RETURNS TABLE (flag integer, want integer, cls text, ready bigint, more boolean)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
BEGIN
    IF NOT tended AND (
        forebay.stirs(v_now) OR EXISTS (SELECT FROM forebay.pace AS p WHERE p.open AND p.queue = ANY (names))
    ) THEN
        RETURN QUERY SELECT 1, 0, NULL::text, 0::bigint, false;
        RETURN;
    END IF;
    PERFORM 1 FROM unnest(names, versions) AS u (name, version) LEFT JOIN forebay.queue AS q ON q.name = u.name
    WHERE coalesce(q.version, 0) <> u.version;
    IF FOUND THEN
        RETURN QUERY SELECT 2, 0, NULL::text, 0::bigint, false;
        RETURN;
    END IF;
    PERFORM forebay.ripen_classes(v_now, names);
    FOR i IN 1 .. cardinality(names) LOOP
        PERFORM 1 FROM forebay.queue AS q WHERE q.name = names[i] AND q.paused_until > v_now;
        CONTINUE WHEN FOUND;
        RETURN QUERY
        WITH RECURSIVE found AS (
            (SELECT r.cls FROM forebay.run AS r WHERE r.state = 1 AND r.queue = names[i] ORDER BY r.cls LIMIT 1)
            UNION ALL
            SELECT (
                SELECT r.cls FROM forebay.run AS r WHERE r.state = 1 AND r.queue = names[i] AND r.cls > found.cls
                ORDER BY r.cls LIMIT 1
            )
            FROM found WHERE found.cls IS NOT NULL
        )
        SELECT 0, i, found.cls, front.ready, front.runs > mosts[i]
        FROM found, LATERAL (
            SELECT sum(f.n) AS ready, count(*) AS runs, min(f.last_id) AS first
            FROM (
                SELECT r.n, r.last_id FROM forebay.run AS r
                WHERE r.state = 1 AND r.queue = names[i] AND r.cls = found.cls
                    AND (r.expires_at IS NULL OR r.expires_at > v_now)
                ORDER BY r.rank, r.last_id LIMIT mosts[i] + 1
            ) AS f
        ) AS front
        WHERE found.cls IS NOT NULL AND front.ready > 0
        ORDER BY front.first;
    END LOOP;
END
$$;

-- As in 0002, and when a rate lets somebody of these queues in.
CREATE OR REPLACE FUNCTION forebay.work_at(
    queues text[], leads bigint[], floors bigint[], silent integer[], silent_floors bigint[], alone_floor bigint
)
RETURNS TABLE (ready_at bigint, due_at bigint, gated_at bigint, lease_until bigint, stirs boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
-- Planned anew in every call otherwise, which takes longer than the answer.
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT
        (
            SELECT min(coalesce(q.paused_until, 0)) FROM unnest(queues, leads, floors) AS u (name, lead, floor)
            LEFT JOIN forebay.queue AS q ON q.name = u.name
            -- Not EXISTS: the planner may make a hash of all rows for that.
            WHERE CASE WHEN u.floor IS NULL THEN
                (SELECT true FROM forebay.run AS r WHERE r.state = 1 AND r.queue = u.name LIMIT 1)
            ELSE
                coalesce(
                    (
                        SELECT true FROM forebay.run AS r
                        WHERE r.state = 1 AND r.queue = u.name AND r.cls = '' AND r.rank >= u.floor LIMIT 1
                    ), (
                        SELECT true FROM forebay.run AS r WHERE r.state = 1 AND r.queue = u.name AND r.cls = ''
                            AND r.rank >= coalesce(u.lead, -9223372036854775808) AND r.rank < 0 LIMIT 1
                    )
                )
            END
        ),
        (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 3),
        least(
            (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 0 AND r.gate IS NULL),
            (
                SELECT min(greatest(coalesce(q.paused_until, 0), CASE WHEN (
                    SELECT true FROM forebay.pace AS p WHERE p.open AND p.queue = u.name LIMIT 1
                ) THEN 0 ELSE n.opens_at END))
                FROM unnest(queues) AS u (name) LEFT JOIN forebay.queue AS q ON q.name = u.name
                LEFT JOIN LATERAL (
                    SELECT min(p.opens_at) AS opens_at FROM forebay.pace AS p WHERE NOT p.open AND p.queue = u.name
                ) AS n ON true
                WHERE EXISTS (SELECT FROM forebay.pace AS p WHERE p.queue = u.name)
                    AND (n.opens_at IS NOT NULL OR EXISTS (SELECT FROM forebay.pace AS p WHERE p.open AND p.queue = u.name))
            )
        ),
        least(
            (
                -- A holder whose heart beats need not be looked at before it could have stopped.
                SELECT min(greatest(h.until, l.first)) FROM forebay.holder AS h, LATERAL (
                    SELECT h.until AS first WHERE h.until > forebay.clock()
                    UNION ALL
                    SELECT (
                        SELECT r.lease_until FROM forebay.run AS r
                        WHERE r.state = 2 AND r.holder = h.id AND r.lease_until > coalesce((
                            SELECT f.floor FROM unnest(silent, silent_floors) AS f (id, floor) WHERE f.id = h.id
                        ), -9223372036854775808)
                        ORDER BY r.lease_until LIMIT 1
                    )
                    WHERE h.until <= forebay.clock()
                ) AS l
                WHERE l.first IS NOT NULL
            ),
            (
                SELECT min(r.lease_until) FROM forebay.run AS r
                WHERE r.state = 2 AND NOT r.beat AND r.lease_until > alone_floor
            )
        ),
        EXISTS (SELECT FROM forebay.gate AS g WHERE g.opened) OR EXISTS (SELECT FROM forebay.inbox);
END
$$;

-- As in 0003, and a draft may cost more than one.
CREATE OR REPLACE FUNCTION forebay.enqueue_draft(draft json) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog SET enable_seqscan = off
AS $$
DECLARE
    v_now bigint := forebay.clock();
    v_id bigint := nextval('forebay.job_id');
    v_queue text := coalesce(draft ->> 'queue', 'default');
    v_kind text := draft ->> 'kind';
    v_key text := draft ->> 'key';
    v_body json := coalesce(draft -> 'body', 'null');
    v_due bigint;
    v_lives integer;
    v_known forebay.queue;
    v_first forebay.key;
    v_digest bytea;
    v_facts jsonb;
BEGIN
    IF v_kind IS NULL OR v_kind !~ '^[A-Za-z0-9_.:-]{1,128}$' THEN
        RAISE EXCEPTION 'forebay: kind % is not a name', quote_nullable(v_kind) USING ERRCODE = '22023',
            HINT = 'use 1 to 128 of A-Z a-z 0-9 _ . : -';
    ELSIF v_queue !~ '^[A-Za-z0-9_.:-]{1,128}$' THEN
        RAISE EXCEPTION 'forebay: queue % is not a name', quote_nullable(v_queue) USING ERRCODE = '22023',
            HINT = 'use 1 to 128 of A-Z a-z 0-9 _ . : -';
    ELSIF octet_length(v_body::text) > 262144 THEN
        RAISE EXCEPTION 'forebay: the payload has % bytes, the limit is 262144', octet_length(v_body::text)
            USING ERRCODE = '22023', HINT = 'store it elsewhere and send a reference';
    ELSIF v_key IS NOT NULL AND length(v_key) NOT BETWEEN 1 AND 256 THEN
        RAISE EXCEPTION 'forebay: the key is empty or longer than 256' USING ERRCODE = '22023';
    END IF;
    SELECT * INTO v_known FROM forebay.queue WHERE name = v_queue;
    IF v_known.is_log THEN
        RAISE EXCEPTION 'forebay: % is a log, not a queue', v_queue USING ERRCODE = '22023', HINT = 'append to it';
    END IF;
    IF v_key IS NOT NULL THEN
        v_digest := coalesce(
            decode(draft ->> 'digest', 'hex'), sha256(convert_to(v_kind || E'\n' || v_body::jsonb::text, 'UTF8'))
        );
        INSERT INTO forebay.key AS k (queue, key, job_id, digest, until)
        VALUES (v_queue, v_key, v_id, v_digest, v_now + coalesce(v_known.key_window, 300000000))
        ON CONFLICT (queue, key) DO UPDATE
        SET job_id = excluded.job_id, digest = excluded.digest, until = excluded.until WHERE k.until <= v_now;
        IF NOT FOUND THEN
            SELECT * INTO v_first FROM forebay.key AS k WHERE k.queue = v_queue AND k.key = v_key;
            IF octet_length(v_first.digest) = octet_length(v_digest) AND v_first.digest <> v_digest THEN
                RAISE EXCEPTION 'forebay: key % of queue % belongs to job % with another payload', quote_literal(v_key),
                    v_queue, v_first.job_id USING ERRCODE = '23505';
            END IF;
            RETURN v_first.job_id;
        END IF;
    END IF;
    IF NOT coalesce(v_known.plain, true) OR (draft ->> 'expires_at') IS NOT NULL THEN
        INSERT INTO forebay.inbox VALUES (v_id, draft);
        RETURN v_id;
    END IF;
    v_lives := coalesce((draft ->> 'max_attempts')::integer, v_known.lives, 25);
    v_due := greatest(v_now + coalesce((draft ->> 'delay')::bigint, 0), (draft ->> 'run_at')::bigint);
    v_facts := jsonb_strip_nulls(jsonb_build_object(
        'tenant', draft ->> 'tenant', 'subject', draft ->> 'subject', 'key', v_key,
        'priority', nullif((draft ->> 'priority')::integer, 0), 'deadline', (draft ->> 'deadline')::bigint,
        'meta', draft -> 'meta', 'cost', nullif((draft ->> 'cost')::integer, 1)
    ));
    INSERT INTO forebay.run (
        last_id, rank, due_at, enqueued_at, rank_base, n, size, max_attempts, state, single, rank_timed, queue, cls,
        kind, facts, bodies
    )
    VALUES (
        v_id, forebay.rank_at(0, 2::smallint, v_due, v_now), v_due, v_now, 0, 1, 1,
        v_lives, CASE WHEN v_due > v_now THEN 3 ELSE 1 END, true,
        2, v_queue, '', v_kind, CASE WHEN v_facts <> '{}' THEN json_build_array(v_facts) END, json_build_array(v_body)
    );
    INSERT INTO forebay.ledger (at, verb, spans)
    SELECT v_now, 'enqueue', json_build_array(json_build_array(
        'accepted', v_id, 1, v_queue, v_kind, 0, 0, v_lives, v_now, v_due, 0, 0,
        CASE WHEN v_facts <> '{}' THEN json_build_array(v_facts) END
    ))
    FROM forebay.ledger_rule AS l WHERE l.recording;
    RETURN v_id;
END
$$;
