-- Claim: what becomes ready, what is handed out, and when there will be work. One round trip and one commit; `at` is NULL
-- in production: the server's clock alone decides.
--
-- Here and in the next files rows are named by two arrays, and joined to them. The conditions `= ANY (…)` beside the join
-- look superfluous: they restrict the look-up in the primary key to these rows, whatever the statistics say of a table
-- that is full one minute and empty the next. Without them a plan may scan the whole index, dead entries included. A
-- function that is called from such a function runs under its settings, unless it sets its own.

-- Due runs of one line become ready.
CREATE FUNCTION forebay.ripen(v_now bigint, v_queue text, v_class text, most integer) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on SET enable_hashjoin = off
AS $$
BEGIN
    WITH due AS MATERIALIZED (
        SELECT r.single, r.last_id FROM forebay.run AS r
        WHERE r.state = 3 AND r.queue = v_queue AND r.cls = v_class AND r.due_at <= v_now
            AND (r.expires_at IS NULL OR r.expires_at > v_now)
        ORDER BY r.due_at, r.last_id LIMIT most FOR UPDATE SKIP LOCKED
    )
    UPDATE forebay.run AS r SET state = 1 FROM due WHERE r.single = due.single AND r.last_id = due.last_id;
END
$$;

-- The same for all classes of these queues. (`queue || ''`, and no sorting: the planner might else walk over all that is
-- due later.)
CREATE FUNCTION forebay.ripen_classes(v_now bigint, names text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    v_due record;
BEGIN
    FOR v_due IN
        SELECT DISTINCT d.queue, d.cls
        FROM (
            SELECT r.queue, r.cls FROM forebay.run AS r
            WHERE r.state = 3 AND r.due_at <= v_now AND r.queue || '' = ANY (names) ORDER BY r.due_at LIMIT 1000
        ) AS d
    LOOP
        PERFORM forebay.ripen(v_now, v_due.queue, v_due.cls, 1000);
    END LOOP;
END
$$;

-- Whether there is anything to look after before a claim: gated jobs whose time has come, an open gate with somebody
-- before it, jobs that expired, jobs that SQL users put, rates whose time has come.
CREATE FUNCTION forebay.stirs(v_now bigint) RETURNS boolean
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

-- A run with its jobs, as callers read it.
CREATE TYPE forebay.claimed AS (
    flag integer, stamp bigint, want integer, rank bigint, single boolean, last_id bigint, n integer, size integer, state smallint,
    queue text, kind text, due_at bigint, enqueued_at bigint, delivery integer, attempt integer, max_attempts integer,
    claimed_at bigint, lease_until bigint, expires_at bigint, gated boolean, errors text, facts json, bodies json,
    gone text, asked text, owner text, beat boolean
);

CREATE FUNCTION forebay.nothing(flag integer, stamp bigint) RETURNS forebay.claimed LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    v_row forebay.claimed;
BEGIN
    v_row.flag := flag;
    v_row.stamp := stamp;
    RETURN v_row;
END
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

-- Of many classes the first runs, as many as are expected to be needed, those that fit whole: in one step, however many
-- classes there are. A run that two wants have in view goes to one of them.
CREATE FUNCTION forebay.take_whole(
    v_now bigint, v_until bigint, me integer, v_beat boolean, names text[], classes text[], counts integer[], rows integer[]
) RETURNS SETOF forebay.claimed
LANGUAGE plpgsql SET enable_nestloop = on SET enable_hashjoin = off
AS $$
#variable_conflict use_column
BEGIN
    PERFORM forebay.ripen_classes(v_now, names);
    RETURN QUERY
    WITH front AS MATERIALIZED (
        SELECT u.want::integer, u.count, r.single, r.last_id,
            sum(r.n) OVER (PARTITION BY u.want ORDER BY r.rank, r.last_id) AS upto
        FROM unnest(names, classes, counts, rows) WITH ORDINALITY AS u (name, class, count, rows, want), LATERAL (
            SELECT r.single, r.last_id, r.n, r.rank FROM forebay.run AS r
            WHERE r.state = 1 AND r.queue = u.name AND r.cls = u.class
                AND (r.expires_at IS NULL OR r.expires_at > v_now)
            ORDER BY r.rank, r.last_id LIMIT least(u.rows, u.count) FOR UPDATE SKIP LOCKED
        ) AS r
        WHERE NOT EXISTS (SELECT FROM forebay.queue AS q WHERE q.name = u.name AND q.paused_until > v_now)
    )
    UPDATE forebay.run AS r
    SET state = 2, attempt = r.attempt + 1, delivery = r.delivery + 1, holder = me, beat = v_beat,
        claimed_at = greatest(v_now, r.due_at), lease_until = v_until, merges = false
    FROM front AS f
    WHERE f.upto <= f.count AND r.single = f.single AND r.last_id = f.last_id
    RETURNING 0, v_now, f.want, r.rank, r.single, r.last_id, r.n, r.size, r.state, r.queue, r.kind, r.due_at,
        r.enqueued_at, r.delivery, r.attempt, r.max_attempts, r.claimed_at, r.lease_until, r.expires_at,
        r.gates IS NOT NULL, r.errors, r.facts, r.bodies, NULL::text, r.asked::text, NULL::text, r.beat;
END
$$;

-- Hand out. A row may say instead: 1, something is to be looked after first; 2, a spec has changed; 3, there are classes
-- in a queue that nobody named. Nothing has been handed out then.
-- `rows`: how many runs the caller expects to need for a want, so that no more are locked than are taken.
-- `leads`, `floors`: where to begin among those who lead (ranks below zero) and among the others; NULL: at the front.
-- Somebody's old snapshot keeps dead entries in the index, and walking over all of them would take longer and longer.
-- There is also something to be looked after where a rate lets a job start.
CREATE FUNCTION forebay.claim(
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

-- Classes of queues that have ready jobs, in the order of their first ones. Of each as many runs are counted as is said
-- in `mosts`; `more`: there are others. A row may say instead, as in `claim`: 1 or 2.
-- There is also something to be looked after where a rate lets a job start.
CREATE FUNCTION forebay.classes(at bigint, tended boolean, names text[], versions integer[], mosts integer[])
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

-- When there is work in these queues (0: now; later if they pause), when something falls due, when a lease runs out; and
-- whether there is something to look after. `leads`, `floors`: as in `claim`.
-- Work begins also where a rate lets a job of these queues start.
CREATE FUNCTION forebay.work_at(
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
