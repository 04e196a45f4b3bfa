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
