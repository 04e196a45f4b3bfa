-- The hot verbs, one round trip and one commit each. `at` is NULL in production: the server's clock alone decides.
--
-- Rows are named by two arrays, and joined to them. The conditions `= ANY (…)` beside the join look superfluous: they make
-- the primary key be asked for these rows alone, whatever the statistics of a table say that is full one minute and empty
-- the next. Without them a plan may walk over the whole index, dead entries and all. What such a function calls runs under
-- its settings, unless it says otherwise.

CREATE FUNCTION forebay.clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- `count` elements of a JSON array, those after the first `skip`, untouched.
CREATE FUNCTION forebay.slice(list json, skip integer, count integer) RETURNS json LANGUAGE plpgsql IMMUTABLE STRICT
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT json_agg(e.value ORDER BY e.place)
        FROM json_array_elements(list) WITH ORDINALITY AS e (value, place)
        WHERE e.place > skip AND e.place <= skip + count
    );
END
$$;

-- Where a job stands in line whose due time is written now; the same as core's `rank_at`.
CREATE FUNCTION forebay.rank_at(base bigint, timed smallint, due_at bigint, v_now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN timed = 0 THEN base WHEN timed = 2 AND due_at > v_now THEN base + due_at - 9007199254740992
        ELSE base + due_at END
$$;

-- The rank of a job that goes back to the place that it had; the same as core's `rank_back`.
CREATE FUNCTION forebay.rank_back(rank bigint, timed smallint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN timed = 2 AND rank >= 0 THEN rank - 9007199254740992 ELSE rank END $$;

-- The rank of a job that waits again, as its verdict says.
CREATE FUNCTION forebay.rank_again(
    keep_rank boolean, rank bigint, base bigint, timed smallint, v_now bigint, due_at bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN keep_rank THEN forebay.rank_back(rank, timed) ELSE forebay.rank_at(base, timed, due_at, v_now) END $$;

-- Put runs. `first` -1: the stamps come from an old version of a spec. A call that is repeated gets its first answer.
CREATE FUNCTION forebay.put(
    at bigint, token uuid, names text[], versions integer[],
    counts integer[], queues text[], classes text[], kinds text[], delays bigint[], run_ats bigint[],
    bases bigint[], timed smallint[], lives integer[], expiries bigint[], facts json[], bodies json[]
) RETURNS TABLE (first bigint, stamp bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
    v_first bigint := nextval('forebay.job_id');
BEGIN
    INSERT INTO forebay.call AS c VALUES (put.token, v_first, v_now) ON CONFLICT (token) DO NOTHING;
    IF NOT FOUND THEN
        RETURN QUERY SELECT c.first_id, c.at FROM forebay.call AS c WHERE c.token = put.token;
        RETURN;
    END IF;
    PERFORM 1 FROM unnest(names, versions) AS u (name, version) LEFT JOIN forebay.queue AS q ON q.name = u.name
    WHERE coalesce(q.version, 0) <> u.version;
    IF FOUND THEN
        DELETE FROM forebay.call AS c WHERE c.token = put.token;
        RETURN QUERY SELECT -1::bigint, v_now;
        RETURN;
    END IF;
    WITH born AS (
        INSERT INTO forebay.run (
            last_id, rank, due_at, enqueued_at, rank_base, expires_at, n, size, max_attempts, state, single, rank_timed,
            queue, cls, kind, facts, bodies
        )
        SELECT
            v_first + r.upto - 1,
            forebay.rank_at(r.base, r.timed, r.due_at, v_now), r.due_at, v_now, r.base, r.expires_at, r.n, r.n, r.lives,
            CASE WHEN r.due_at > v_now THEN 3 ELSE 1 END, r.n = 1,
            r.timed, r.queue, r.cls, r.kind, r.facts, r.bodies
        FROM (
            SELECT u.*, sum(u.n) OVER (ORDER BY u.place) AS upto,
                CASE WHEN u.run_at IS NULL THEN v_now + u.delay ELSE greatest(v_now, u.run_at) END AS due_at
            FROM unnest(
                counts, queues, classes, kinds, delays, run_ats, bases, timed, lives, expiries, facts, bodies
            ) WITH ORDINALITY AS u (
                n, queue, cls, kind, delay, run_at, base, timed, lives, expires_at, facts, bodies, place
            )
        ) AS r
        RETURNING last_id, n, queue, kind, max_attempts, due_at, facts
    )
    INSERT INTO forebay.ledger (at, verb, spans)
    SELECT v_now, 'enqueue', json_agg(json_build_array(
        'accepted', b.last_id - b.n + 1, b.n, b.queue, b.kind, 0, 0, b.max_attempts, v_now, b.due_at, 0, 0, b.facts
    ) ORDER BY b.last_id)
    FROM born AS b, forebay.ledger_rule AS l WHERE l.recording
    HAVING count(*) > 0;
    RETURN QUERY SELECT v_first, v_now;
END
$$;

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

-- A run with its jobs, as callers read it.
CREATE TYPE forebay.claimed AS (
    flag integer, stamp bigint, want integer, rank bigint, single boolean, last_id bigint, n integer, size integer, state smallint,
    queue text, kind text, due_at bigint, enqueued_at bigint, delivery integer, attempt integer, max_attempts integer,
    claimed_at bigint, lease_until bigint, expires_at bigint, gated boolean, errors text, facts json, bodies json,
    gone text, asked text, owner text, beat boolean
);

-- Hand out. A row may say instead: 1, something is to be looked after first; 2, a spec has changed; 3, there are classes
-- in a queue that nobody named. Nothing has been handed out then.
-- `rows`: how many runs the caller expects to need for a want, so that no more are locked than are taken.
-- `leads`, `floors`: where to begin among those who lead (ranks below zero) and among the others; NULL: at the front.
-- Somebody's old snapshot keeps dead entries in the index, and walking over all of them would take longer and longer.
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

-- Whether there is anything to look after before a claim: gated jobs whose time has come, an open gate with somebody
-- before it, jobs that expired, jobs that SQL users put.
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
    );
END
$$;

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

-- The first `count` jobs of a ready run go to a holder as a run of their own; the rest stays where it is.
CREATE FUNCTION forebay.split(
    v_single boolean, v_last bigint, count integer, me integer, v_now bigint, v_until bigint, v_beat boolean,
    want integer
) RETURNS forebay.claimed
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_row forebay.claimed;
BEGIN
    WITH rest AS (
        UPDATE forebay.run AS r SET n = r.n - count WHERE r.single = v_single AND r.last_id = v_last RETURNING r.*
    ), part AS (
        INSERT INTO forebay.run (
            last_id, rank, due_at, enqueued_at, rank_base, lease_until, claimed_at, n, size, delivery,
            attempt, max_attempts, holder, state, single, beat, rank_timed, queue, cls, kind, facts, bodies
        )
        SELECT
            r.last_id - r.n, r.rank, r.due_at, r.enqueued_at, r.rank_base, v_until, greatest(v_now, r.due_at), count, count,
            r.delivery + 1, r.attempt + 1, r.max_attempts, me, 2, false, v_beat, r.rank_timed, r.queue, r.cls, r.kind,
            forebay.slice(r.facts, r.size - r.n - count, count), forebay.slice(r.bodies, r.size - r.n - count, count)
        FROM rest AS r
        RETURNING *
    )
    SELECT 0, v_now, want, r.rank, r.single, r.last_id, r.n, r.size, r.state, r.queue, r.kind, r.due_at, r.enqueued_at,
        r.delivery, r.attempt, r.max_attempts, r.claimed_at, r.lease_until, r.expires_at, false, r.errors, r.facts,
        r.bodies, NULL, NULL, NULL, r.beat
    INTO v_row FROM part AS r;
    RETURN v_row;
END
$$;

-- Until when a run is leased.
CREATE FUNCTION forebay.leased_until(beat boolean, lease_until bigint, holder integer) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN beat THEN greatest(lease_until, (SELECT h.until FROM forebay.holder AS h WHERE h.id = holder))
        ELSE lease_until END
$$;

-- The commit point. `gated`: some of these jobs may have gates, which are released here too; without it those are left
-- alone. A run is settled whole (`bits` NULL) or in part; it is applied if its fence is current, none of these jobs was
-- settled before and, where `renewed` is given, the lease was not renewed since then.
-- `memo`: what to remember of jobs that are gone. `outs`: jobs that go somewhere else than away. `told`: for the ledger,
-- the spans of each run, a line a run.
-- Returns the numbers of the runs that were applied; the others are untouched.
-- (`state + 0`: with a bare state the planner may prefer the index of all that is held to the primary key.)
CREATE FUNCTION forebay.settle(
    at bigint, gated boolean, mine integer[],
    singles boolean[], lasts bigint[], deliveries integer[], bits text[], renewed bigint[],
    memo_runs integer[], memo_firsts bigint[], memo_sizes integer[], memo_codes text[], outs json, told text
) RETURNS integer[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
    v_whole integer[];
    v_parts integer[];
    v_holders integer[];
    v_more integer[];
    v_gated integer[];
    v_stamps text[];
    v_queues text[];
BEGIN
    IF gated THEN
        PERFORM forebay.lock_gates();
        SELECT array_agg(u.place), array_agg(r.gates), array_agg(r.queue) INTO v_gated, v_stamps, v_queues
        FROM unnest(singles, lasts) WITH ORDINALITY AS u (single, last_id, place)
        JOIN forebay.run AS r ON r.single = u.single AND r.last_id = u.last_id AND r.gates IS NOT NULL
        WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts);
    END IF;
    WITH gone AS (
        DELETE FROM forebay.run AS r
        USING unnest(singles, lasts, deliveries, bits) WITH ORDINALITY AS u (single, last_id, delivery, bits, place)
        WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts)
            AND u.bits IS NULL AND r.single = u.single AND r.last_id = u.last_id AND r.delivery = u.delivery
            AND r.state + 0 = 2 AND r.gone IS NULL AND (gated OR r.gates IS NULL)
        RETURNING u.place::integer, r.holder
    )
    SELECT array_agg(place), array_agg(DISTINCT holder) INTO v_whole, v_holders FROM gone;
    IF cardinality(array_remove(bits, NULL)) > 0 THEN
        WITH part AS (
            UPDATE forebay.run AS r
            SET gone = coalesce(r.gone, repeat('0', r.n)::bit varying) | u.bits::bit varying
            FROM unnest(singles, lasts, deliveries, bits, renewed)
                WITH ORDINALITY AS u (single, last_id, delivery, bits, renewed, place)
            WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts)
                AND u.bits IS NOT NULL AND r.single = u.single AND r.last_id = u.last_id AND r.delivery = u.delivery
                AND r.state + 0 = 2 AND (gated OR r.gates IS NULL) AND r.n = length(u.bits)
                AND (r.gone IS NULL OR bit_count(r.gone & u.bits::bit varying) = 0)
                AND (u.renewed IS NULL OR forebay.leased_until(r.beat, r.lease_until, r.holder) <= u.renewed)
            RETURNING u.place::integer, r.holder
        )
        SELECT array_agg(place), array_agg(DISTINCT holder) INTO v_parts, v_more FROM part;
        IF outs IS NOT NULL THEN
            PERFORM forebay.break_out(v_now, singles, lasts, v_parts, outs);
        END IF;
        DELETE FROM forebay.run AS r
        USING unnest(v_parts) AS p (place)
        WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts)
            AND r.single = singles[p.place] AND r.last_id = lasts[p.place] AND r.state + 0 = 2
            AND bit_count(r.gone) = r.n;
    END IF;
    v_whole := v_whole || v_parts;
    INSERT INTO forebay.settled (jobs, firsts, sizes, deliveries, codes)
    SELECT sum(m.size), array_agg(m.first), array_agg(m.size), array_agg(deliveries[m.run]), array_agg(m.code)
    FROM unnest(memo_runs, memo_firsts, memo_sizes, memo_codes) AS m (run, first, size, code)
    WHERE m.run = ANY (v_whole)
    HAVING count(*) > 0;
    INSERT INTO forebay.ledger (at, verb, spans)
    SELECT v_now, 'settle', ('[' || CASE
        WHEN cardinality(v_whole) = cardinality(lasts) THEN replace(told, E'\n', ',')
        ELSE (
            SELECT string_agg(t.line, ',' ORDER BY t.run)
            FROM unnest(string_to_array(told, E'\n')) WITH ORDINALITY AS t (line, run) WHERE t.run = ANY (v_whole)
        ) END || ']')::json
    FROM forebay.ledger_rule AS l WHERE l.recording AND cardinality(v_whole) > 0;
    IF v_gated IS NOT NULL THEN
        SELECT array_agg(g.run), array_agg(g.stamps) INTO v_gated, v_stamps
        FROM unnest(v_gated, v_stamps) AS g (run, stamps) WHERE g.run = ANY (v_whole);
        PERFORM forebay.settle_gates(
            v_now, v_queues, v_gated, ARRAY(SELECT lasts[g.run] FROM unnest(v_gated) AS g (run)), v_stamps,
            memo_runs, memo_codes, outs
        );
    END IF;
    IF NOT mine @> array_remove(v_holders || v_more, NULL) THEN
        UPDATE forebay.holder AS h SET changes = h.changes + 1
        WHERE h.id = ANY (v_holders || v_more) AND h.id <> ALL (mine);
    END IF;
    RETURN coalesce(v_whole, '{}');
END
$$;

-- Jobs leave their runs to be tried again or to be kept. Codes: a done, c cancelled, d dead, r again, l handed back.
-- `errors` comes without the instant of the last failure, which is now.
CREATE FUNCTION forebay.break_out(v_now bigint, singles boolean[], lasts bigint[], parts integer[], outs json)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
BEGIN
    WITH o AS MATERIALIZED (
        SELECT singles[o.run] AS single, lasts[o.run] AS last_id, o.id, o.place, o.code, v_now + o.after AS due_at,
            CASE WHEN o.errors IS NOT NULL THEN o.errors || v_now || ']]' END AS errors,
            v_now + o.keep AS kept_until, o.result::json AS result, o.queue,
            o.keep_rank
        FROM json_to_recordset(outs) AS o (
            run integer, id bigint, place integer, code text, after bigint, errors text, keep bigint, result text,
            queue text, keep_rank boolean
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
            rank = forebay.rank_again(o.keep_rank, r.rank, r.rank_base, r.rank_timed, v_now, o.due_at),
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
    SELECT o.id, forebay.rank_again(o.keep_rank, r.rank, r.rank_base, r.rank_timed, v_now, o.due_at), o.due_at,
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

-- What is remembered of settles of jobs that are gone.
CREATE FUNCTION forebay.remembered(ids bigint[]) RETURNS TABLE (id bigint, delivery integer, code text)
LANGUAGE sql STABLE
AS $$
    SELECT i.id, m.delivery, m.code
    FROM unnest(ids) AS i (id), forebay.settled AS s,
        unnest(s.firsts, s.sizes, s.deliveries, s.codes) AS m (first, size, delivery, code)
    WHERE i.id >= m.first AND i.id < m.first + m.size
$$;

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
            CASE WHEN r.facts IS NOT NULL THEN forebay.kinds(r.facts, r.size - r.n + p.skip, p.n) END
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

-- These jobs of a running run, which has others too, become running runs of one with the time that they had.
CREATE FUNCTION forebay.set_apart(v_single boolean, v_last bigint, v_delivery integer, places integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    WITH part AS (
        UPDATE forebay.run AS r
        SET gone = coalesce(r.gone, repeat('0', r.n)::bit varying) | (
            SELECT string_agg(CASE WHEN i = ANY (places) THEN '1' ELSE '0' END, '' ORDER BY i)
            FROM generate_series(0, r.n - 1) AS i
        )::bit varying
        WHERE r.single = v_single AND r.last_id = v_last AND r.delivery = v_delivery AND r.state + 0 = 2
            AND (r.gone IS NULL OR NOT EXISTS (SELECT FROM unnest(places) AS p WHERE get_bit(r.gone, p) = 1))
        RETURNING r.*
    )
    INSERT INTO forebay.run (
        last_id, rank, due_at, enqueued_at, rank_base, lease_until, claimed_at, n, size, delivery, attempt,
        max_attempts, holder, state, single, beat, rank_timed, queue, cls, kind, asked, facts, bodies
    )
    SELECT r.last_id - r.n + 1 + p, r.rank, r.due_at, r.enqueued_at, r.rank_base,
        forebay.leased_until(r.beat, r.lease_until, r.holder), r.claimed_at, 1, 1, r.delivery, r.attempt, r.max_attempts, r.holder, 2, true, false, r.rank_timed, r.queue,
        r.cls, r.kind, CASE WHEN get_bit(r.asked, p) = 1 THEN B'1' END,
        CASE WHEN r.facts IS NOT NULL THEN forebay.slice(r.facts, r.size - r.n + p, 1) END,
        forebay.slice(r.bodies, r.size - r.n + p, 1)
    FROM part AS r, unnest(places) AS p;
END
$$;

-- Runs that a claim took whose answer was lost are handed back: the holder does not know of them. Those with gates wait
-- until their leases run out.
CREATE FUNCTION forebay.hand_back(at bigint, v_holder integer, singles boolean[], lasts bigint[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
BEGIN
    WITH lost AS (
        SELECT r.single, r.last_id, r.claimed_at FROM forebay.run AS r
        WHERE r.state = 2 AND r.holder = v_holder AND r.beat AND r.gates IS NULL AND r.gone IS NULL
            AND NOT EXISTS (
                SELECT FROM unnest(singles, lasts) AS u (single, last_id)
                WHERE u.single = r.single AND u.last_id = r.last_id
            )
        FOR UPDATE
    ), back AS (
        UPDATE forebay.run AS r
        SET state = 1, attempt = r.attempt - 1, holder = NULL, lease_until = NULL, claimed_at = NULL,
            rank = forebay.rank_back(r.rank, r.rank_timed)
        FROM lost WHERE r.single = lost.single AND r.last_id = lost.last_id
        RETURNING r.*, lost.claimed_at AS since
    )
    INSERT INTO forebay.ledger (at, verb, spans)
    SELECT coalesce(at, forebay.clock()), 'hand_back', json_agg(json_build_array(
        'released', r.last_id - r.n + 1, r.n, r.queue, r.kind, r.delivery, r.attempt + 1, 0, r.enqueued_at, r.due_at,
        r.since, r.due_at, CASE WHEN r.facts IS NOT NULL THEN forebay.kinds(r.facts, r.size - r.n, r.n) END
    ) ORDER BY r.last_id)
    FROM back AS r, forebay.ledger_rule AS l WHERE l.recording
    HAVING count(*) > 0;
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

-- Which rows hold these jobs.
CREATE FUNCTION forebay.find(ids bigint[]) RETURNS TABLE (id bigint, single boolean, last_id bigint)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
    SELECT i.id, r.single, r.last_id
    FROM unnest(ids) AS i (id), LATERAL (
        SELECT s.single, s.last_id FROM forebay.run AS s WHERE s.single AND s.last_id = i.id
        UNION ALL
        SELECT m.single, m.last_id
        FROM (
            SELECT * FROM forebay.run AS m WHERE NOT m.single AND m.last_id >= i.id ORDER BY m.last_id LIMIT 1
        ) AS m
        WHERE m.last_id - m.n < i.id
            AND (m.gone IS NULL OR get_bit(m.gone, (i.id - m.last_id + m.n - 1)::integer) = 0)
    ) AS r
$$;

-- One job leaves a run that nobody holds and becomes a run of one in the same state; the others stay.
CREATE FUNCTION forebay.take_out(v_last bigint, v_id bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    WITH whole AS (
        DELETE FROM forebay.run AS r
        WHERE NOT r.single AND r.last_id = v_last AND r.state <> 2 AND r.last_id - r.n < v_id
        RETURNING r.*
    ), part AS (
        SELECT v_id - 1 AS last_id, r.n - (r.last_id - v_id + 1) AS n, r.size - r.n AS skip, false AS single FROM whole AS r
        UNION ALL
        SELECT v_id, 1, r.size - (r.last_id - v_id + 1), true FROM whole AS r
        UNION ALL
        SELECT r.last_id, r.last_id - v_id, r.size - (r.last_id - v_id), false FROM whole AS r
    )
    INSERT INTO forebay.run (
        last_id, rank, due_at, enqueued_at, rank_base, n, size, delivery, attempt, max_attempts, state, single,
        rank_timed, queue, cls, kind, facts, bodies
    )
    SELECT p.last_id, r.rank, r.due_at, r.enqueued_at, r.rank_base, p.n, p.n, r.delivery, r.attempt, r.max_attempts,
        r.state, p.single, r.rank_timed, r.queue, r.cls, r.kind,
        forebay.slice(r.facts, p.skip::integer, p.n::integer), forebay.slice(r.bodies, p.skip::integer, p.n::integer)
    FROM whole AS r, part AS p
    WHERE p.n > 0;
END
$$;

-- What is due becomes ready, the oldest first; how many jobs, and when the next one is due.
CREATE FUNCTION forebay.promote(at bigint, most integer) RETURNS TABLE (ready bigint, next_due bigint, stirs boolean, stamp bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
    v_left integer := most;
    v_run record;
BEGIN
    FOR v_run IN
        SELECT r.single, r.last_id, r.n FROM forebay.run AS r
        WHERE r.state = 3 AND r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now)
        ORDER BY r.due_at, r.last_id LIMIT most FOR UPDATE SKIP LOCKED
    LOOP
        EXIT WHEN v_left = 0;
        IF v_run.n <= v_left THEN
            UPDATE forebay.run AS r SET state = 1 WHERE r.single = v_run.single AND r.last_id = v_run.last_id;
            v_left := v_left - v_run.n;
        ELSE
            WITH rest AS (
                UPDATE forebay.run AS r SET n = r.n - v_left
                WHERE r.single = v_run.single AND r.last_id = v_run.last_id RETURNING r.*
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
    END LOOP;
    RETURN QUERY SELECT (most - v_left)::bigint,
        least(
            (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 3),
            (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 0 AND r.gate IS NULL)
        ),
        forebay.stirs(v_now)
            OR EXISTS (SELECT FROM forebay.ended AS e WHERE e.kept_until IS NOT NULL AND e.kept_until <= v_now)
            OR EXISTS (SELECT FROM forebay.key AS k WHERE k.until <= v_now),
        v_now;
END
$$;

-- Classes of queues that have ready jobs, in the order of their first ones. Of each as many runs are counted as is said
-- in `mosts`; `more`: there are others. A row may say instead, as in `claim`: 1 or 2.
CREATE FUNCTION forebay.classes(at bigint, tended boolean, names text[], versions integer[], mosts integer[])
RETURNS TABLE (flag integer, want integer, cls text, ready bigint, more boolean)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
BEGIN
    IF NOT tended AND forebay.stirs(v_now) THEN
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
        (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 0 AND r.gate IS NULL),
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
