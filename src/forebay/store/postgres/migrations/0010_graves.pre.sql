-- Dead letters that lie elsewhere, how long and how many of them (core.policy.DeadLetters).

-- `home`: the queue that a dead job died in, where it lies in another one (`queue`).
ALTER TABLE forebay.ended ADD COLUMN home text;
CREATE INDEX ended_lies ON forebay.ended (queue, state, finished_at, id);
DROP INDEX forebay.ended_queue;

-- `dead_seen` jobs lie dead in the queue that died at `dead_upto` or before; NULL: count anew. Kept where the spec says
-- how many may lie there: nobody counts a million of them each time that a few are added.
ALTER TABLE forebay.queue ADD COLUMN dead_seen bigint NOT NULL DEFAULT 0, ADD COLUMN dead_upto bigint;
CREATE INDEX queue_dead_most ON forebay.queue (name) WHERE spec::json #>> '{routing,dead,most}' IS NOT NULL;

-- Whether any queue says how many dead may lie in it.
CREATE FUNCTION forebay.counts_dead() RETURNS boolean
LANGUAGE sql STABLE SET enable_seqscan = off
AS $$ SELECT EXISTS (SELECT FROM forebay.queue AS q WHERE q.spec::json #>> '{routing,dead,most}' IS NOT NULL) $$;

-- By how many more dead lie in this queue than its spec keeps; the row of the queue is locked.
-- What a transaction of more than a minute adds may be seen late, and is then kept too long, never too short.
CREATE FUNCTION forebay.dead_excess(v_now bigint, v_queue text) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_row forebay.queue;
    v_upto bigint;
    v_new bigint;
BEGIN
    SELECT * INTO v_row FROM forebay.queue AS q WHERE q.name = v_queue FOR UPDATE;
    v_upto := v_row.dead_upto;
    IF v_upto IS NULL OR v_upto < v_now - 600000000 THEN
        SELECT count(*) INTO v_new FROM forebay.ended AS e
        WHERE e.queue = v_queue AND e.state = 4 AND e.finished_at <= v_now - 60000000
            AND e.finished_at > coalesce(v_upto, -1);
        v_row.dead_seen := CASE WHEN v_upto IS NULL THEN 0 ELSE v_row.dead_seen END + v_new;
        v_upto := v_now - 60000000;
        UPDATE forebay.queue AS q SET dead_seen = v_row.dead_seen, dead_upto = v_upto WHERE q.name = v_queue;
    END IF;
    SELECT count(*) INTO v_new FROM forebay.ended AS e
    WHERE e.queue = v_queue AND e.state = 4 AND e.finished_at > v_upto;
    RETURN v_row.dead_seen + v_new - coalesce((v_row.spec::json #>> '{routing,dead,most}')::bigint, 9223372036854775807);
END
$$;

-- Whether there is a queue in which too many lie; those that somebody else looks at are left out.
CREATE FUNCTION forebay.crowded(v_now bigint) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
BEGIN
    FOR v_queue IN
        SELECT q.name FROM forebay.queue AS q WHERE q.spec::json #>> '{routing,dead,most}' IS NOT NULL
        ORDER BY q.name FOR UPDATE SKIP LOCKED
    LOOP
        IF forebay.dead_excess(v_now, v_queue) > 0 THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END
$$;

-- The oldest of the dead are gone wherever too many lie, `most` of them at a time.
CREATE FUNCTION forebay.outgrown(v_now bigint, most integer) RETURNS SETOF forebay.ended
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
    v_excess bigint;
    v_gone integer;
    v_left integer := most;
BEGIN
    FOR v_queue IN
        SELECT q.name FROM forebay.queue AS q WHERE q.spec::json #>> '{routing,dead,most}' IS NOT NULL
        ORDER BY q.name FOR UPDATE
    LOOP
        v_excess := least(forebay.dead_excess(v_now, v_queue), v_left);
        CONTINUE WHEN v_excess <= 0;
        RETURN QUERY
        DELETE FROM forebay.ended AS e WHERE e.id = ANY (ARRAY(
            SELECT o.id FROM forebay.ended AS o WHERE o.queue = v_queue AND o.state = 4
            ORDER BY o.finished_at, o.id LIMIT v_excess FOR UPDATE
        ))
        RETURNING e.*;
        GET DIAGNOSTICS v_gone = ROW_COUNT;
        v_left := v_left - v_gone;
        UPDATE forebay.queue AS q SET dead_upto = CASE WHEN q.dead_seen >= v_gone THEN q.dead_upto END,
            dead_seen = greatest(0, q.dead_seen - v_gone) WHERE q.name = v_queue;
    END LOOP;
END
$$;

-- As in 0002, and the dead may lie in another queue: `queue` of an out says where, `keep` how long.
CREATE OR REPLACE FUNCTION forebay.break_out(v_now bigint, singles boolean[], lasts bigint[], parts integer[], outs json)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    WITH o AS MATERIALIZED (
        SELECT singles[o.run] AS single, lasts[o.run] AS last_id, o.id, o.place, o.code, v_now + o.after AS due_at,
            CASE WHEN o.errors IS NOT NULL THEN o.errors || v_now || ']]' END AS errors,
            v_now + o.keep AS kept_until, o.result::json AS result, o.queue
        FROM json_to_recordset(outs) AS o (
            run integer, id bigint, place integer, code text, after bigint, errors text, keep bigint, result text,
            queue text
        )
        WHERE o.run = ANY (parts)
    ), body AS MATERIALIZED (
        SELECT k.single, k.last_id, b.place - 1 - r.size + r.n AS place, b.value
        FROM (SELECT DISTINCT o.single, o.last_id FROM o) AS k
        JOIN forebay.run AS r ON r.single = k.single AND r.last_id = k.last_id
        CROSS JOIN LATERAL json_array_elements(r.bodies) WITH ORDINALITY AS b (value, place)
        WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts)
    ), kept AS (
        INSERT INTO forebay.ended (
            id, due_at, enqueued_at, finished_at, kept_until, expires_at, rank_base, delivery, attempt, max_attempts,
            settled_delivery, state, rank_timed, cancel_requested, queue, cls, kind, settled_code, gates, errors, facts,
            body, result, home
        )
        SELECT o.id, r.due_at, r.enqueued_at, v_now, o.kept_until, r.expires_at, r.rank_base, r.delivery,
            r.attempt, r.max_attempts, r.delivery, CASE o.code WHEN 'a' THEN 3 WHEN 'd' THEN 4 ELSE 5 END,
            r.rank_timed, coalesce(get_bit(r.asked, o.place) = 1, false), coalesce(o.queue, r.queue), r.cls, r.kind,
            o.code, r.gates, coalesce(o.errors, r.errors), r.facts -> (r.size - r.n + o.place), b.value, o.result,
            CASE WHEN o.queue IS NOT NULL THEN r.queue END
        FROM o
        JOIN forebay.run AS r ON r.single = o.single AND r.last_id = o.last_id
        JOIN body AS b ON b.single = o.single AND b.last_id = o.last_id AND b.place = o.place
        WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts) AND o.code IN ('a', 'c', 'd')
    ), again AS (
        UPDATE forebay.run AS r
        SET state = CASE WHEN r.gates IS NOT NULL THEN 0 WHEN o.due_at > v_now THEN 3 ELSE 1 END, due_at = o.due_at,
            rank = forebay.rank_again(o.code, r.rank, r.rank_base, r.rank_timed, v_now, o.due_at),
            attempt = r.attempt - (o.code = 'l')::integer,
            errors = coalesce(o.errors, r.errors), settled_delivery = r.delivery, settled_code = o.code, gone = NULL,
            holder = NULL, lease_until = NULL, claimed_at = NULL
        FROM o
        WHERE r.single AND r.last_id = ANY (lasts) AND o.single AND r.last_id = o.last_id AND o.code IN ('r', 'l')
    )
    INSERT INTO forebay.run (
        last_id, rank, due_at, enqueued_at, rank_base, n, size, delivery, attempt, max_attempts,
        settled_delivery, state, single, rank_timed, queue, cls, kind, settled_code, asked, errors, facts, bodies
    )
    SELECT o.id, forebay.rank_again(o.code, r.rank, r.rank_base, r.rank_timed, v_now, o.due_at), o.due_at,
        r.enqueued_at, r.rank_base, 1, 1, r.delivery, r.attempt - (o.code = 'l')::integer, r.max_attempts, r.delivery,
        CASE WHEN o.due_at > v_now THEN 3 ELSE 1 END, true, r.rank_timed, r.queue, r.cls, r.kind, o.code,
        CASE WHEN get_bit(r.asked, o.place) = 1 THEN B'1' END,
        o.errors, CASE WHEN r.facts IS NOT NULL THEN forebay.slice(r.facts, r.size - r.n + o.place, 1) END,
        json_build_array(b.value)
    FROM o
    JOIN forebay.run AS r ON r.single = o.single AND r.last_id = o.last_id
    JOIN body AS b ON b.single = o.single AND b.last_id = o.last_id AND b.place = o.place
    WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts) AND NOT o.single AND o.code IN ('r', 'l');
END
$$;
