-- Turns: classes that share a gate take turns there (decision 0017).

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
