-- Settle: verdicts, and jobs that leave their runs.

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
            last_id, rank, due_at, enqueued_at, rank_base, lease_until, claimed_at, n, size, cost, delivery,
            attempt, max_attempts, holder, state, single, beat, rank_timed, queue, lane, cls, kind, facts, bodies
        )
        SELECT
            r.last_id - r.n, r.rank, r.due_at, r.enqueued_at, r.rank_base, v_until, greatest(v_now, r.due_at), count, count, r.cost,
            r.delivery + 1, r.attempt + 1, r.max_attempts, me, 2, false, v_beat, r.rank_timed, r.queue, r.lane, r.cls, r.kind,
            forebay.slice(r.facts, r.size - r.n - count, count), forebay.slice(r.bodies, r.size - r.n - count, count)
        FROM rest AS r
        RETURNING *
    )
    SELECT 0, v_now, want, r.rank, r.single, r.last_id, r.n, r.size, r.state, r.queue, r.kind, r.due_at, r.enqueued_at,
        r.delivery, r.attempt, r.max_attempts, r.claimed_at, r.lease_until, r.expires_at, r.errors, r.facts,
        r.bodies, NULL, NULL, NULL, r.beat, NULL
    INTO v_row FROM part AS r;
    RETURN v_row;
END
$$;

-- The commit point. NULL: a spec has changed, and nothing was done. A run is settled whole (`bits` NULL) or in part; it is applied if its fence is current, none of these jobs was
-- settled before and, where `renewed` is given, the lease was not renewed since then.
-- `memo`: what to remember of jobs that are gone. `outs`: jobs that go somewhere else than away. `told`: for the ledger,
-- the spans of each run, a line a run.
-- Returns the numbers of the runs that were applied; the others are untouched.
-- (`state + 0`: with a bare state the planner may prefer the index of all that is held to the primary key.)
CREATE FUNCTION forebay.settle(
    at bigint, v_alone integer[], v_beside integer[], names text[], versions integer[], mine integer[],
    singles boolean[], lasts bigint[], deliveries integer[], bits text[], renewed bigint[],
    memo_runs integer[], memo_firsts bigint[], memo_sizes integer[], memo_codes text[], outs json, told text
) RETURNS integer[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_whole integer[];
    v_parts integer[];
    v_holders integer[];
    v_more integer[];
    v_freed forebay.freed[];
BEGIN
    PERFORM forebay.lock(v_alone, v_beside);
    IF NOT forebay.is_current(names, versions) THEN
        RETURN NULL;
    END IF;
    v_now := coalesce(at, forebay.clock());
    WITH gone AS (
        DELETE FROM forebay.run AS r
        USING unnest(singles, lasts, deliveries, bits) WITH ORDINALITY AS u (single, last_id, delivery, bits, place)
        WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts)
            AND u.bits IS NULL AND r.single = u.single AND r.last_id = u.last_id AND r.delivery = u.delivery
            AND r.state + 0 = 2 AND r.gone IS NULL
        RETURNING u.place::integer, r.holder, r.queue, r.lane, r.line, r.gates, r.cost * r.n AS amount
    )
    -- Jobs of an older spec may have lines and lanes that the queue has not any more.
    SELECT array_agg(place), array_agg(DISTINCT holder),
        array_agg(ROW(queue, lane, line, gates, amount)::forebay.freed)
            FILTER (WHERE v_alone <> '{}' OR line IS NOT NULL OR lane <> '')
    INTO v_whole, v_holders, v_freed FROM gone;
    IF cardinality(array_remove(bits, NULL)) > 0 THEN
        WITH part AS (
            UPDATE forebay.run AS r
            SET gone = coalesce(r.gone, repeat('0', r.n)::bit varying) | u.bits::bit varying
            FROM unnest(singles, lasts, deliveries, bits, renewed)
                WITH ORDINALITY AS u (single, last_id, delivery, bits, renewed, place)
            WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts)
                AND u.bits IS NOT NULL AND r.single = u.single AND r.last_id = u.last_id AND r.delivery = u.delivery
                AND r.state + 0 = 2 AND r.n = length(u.bits)
                AND (r.gone IS NULL OR bit_count(r.gone & u.bits::bit varying) = 0)
                AND (u.renewed IS NULL OR forebay.leased_until(r.beat, r.lease_until, r.holder) <= u.renewed)
            RETURNING u.place::integer, r.holder, r.queue, r.lane, r.line, r.gates,
                r.cost * length(replace(u.bits, '0', '')) AS amount
        )
        SELECT array_agg(place), array_agg(DISTINCT holder),
            v_freed || array_agg(ROW(queue, lane, line, gates, amount)::forebay.freed)
                FILTER (WHERE v_alone <> '{}' OR line IS NOT NULL OR lane <> '')
        INTO v_parts, v_more, v_freed FROM part;
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
    IF v_freed IS NOT NULL THEN
        PERFORM pg_notify('forebay', n.queue)
        FROM (SELECT DISTINCT unnest(forebay.give_back(v_now, v_freed, outs IS NOT NULL)) AS queue) AS n
        WHERE n.queue <> ALL (names);
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
            settled_delivery, state, rank_timed, cancel_requested, queue, cls, kind, settled_code, cost, blocks, lane, line,
            gates, errors, facts, body, result, home
        )
        SELECT o.id, r.due_at, r.enqueued_at, v_now, o.kept_until, r.expires_at, r.rank_base, r.delivery,
            r.attempt, r.max_attempts, r.delivery, CASE o.code WHEN 'a' THEN 3 WHEN 'd' THEN 4 ELSE 5 END,
            r.rank_timed, coalesce(get_bit(r.asked, o.place) = 1, false), coalesce(o.queue, r.queue), r.cls, r.kind,
            o.code, r.cost, r.blocks, r.lane, r.line, r.gates, coalesce(o.errors, r.errors), r.facts -> (r.size - r.n + o.place), b.value, o.result,
            CASE WHEN o.queue IS NOT NULL THEN r.queue END
        FROM o
        JOIN forebay.run AS r ON r.single = o.single AND r.last_id = o.last_id
        JOIN body AS b ON b.single = o.single AND b.last_id = o.last_id AND b.place = o.place
        WHERE r.single = ANY (singles) AND r.last_id = ANY (lasts) AND o.code IN ('a', 'c', 'd')
    ), again AS (
        UPDATE forebay.run AS r
        SET state = CASE WHEN r.line IS NOT NULL THEN 0 WHEN o.due_at > v_now THEN 3 ELSE 1 END, due_at = o.due_at,
            rank = forebay.rank_again(o.keep_rank, r.rank, r.rank_base, r.rank_timed, v_now, o.due_at),
            attempt = r.attempt - (o.code = 'l')::integer,
            errors = coalesce(o.errors, r.errors), settled_delivery = r.delivery, settled_code = o.code, gone = NULL,
            holder = NULL, lease_until = NULL, claimed_at = NULL
        FROM o
        WHERE r.single AND r.last_id = ANY (lasts) AND o.single AND r.last_id = o.last_id AND o.code IN ('r', 'l')
    )
    INSERT INTO forebay.run (
        last_id, rank, due_at, enqueued_at, rank_base, n, size, cost, delivery, attempt, max_attempts,
        settled_delivery, state, single, rank_timed, queue, lane, cls, kind, settled_code, asked, errors, facts, bodies
    )
    SELECT o.id, forebay.rank_again(o.keep_rank, r.rank, r.rank_base, r.rank_timed, v_now, o.due_at), o.due_at,
        r.enqueued_at, r.rank_base, 1, 1, r.cost, r.delivery, r.attempt - (o.code = 'l')::integer, r.max_attempts, r.delivery,
        CASE WHEN o.due_at > v_now THEN 3 ELSE 1 END, true, r.rank_timed, r.queue, r.lane, r.cls, r.kind, o.code,
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
        last_id, rank, due_at, enqueued_at, rank_base, lease_until, claimed_at, n, size, cost, delivery, attempt,
        max_attempts, holder, state, single, beat, rank_timed, queue, lane, cls, kind, asked, facts, bodies
    )
    SELECT r.last_id - r.n + 1 + p, r.rank, r.due_at, r.enqueued_at, r.rank_base,
        forebay.leased_until(r.beat, r.lease_until, r.holder), r.claimed_at, 1, 1, r.cost, r.delivery, r.attempt, r.max_attempts, r.holder, 2, true, false, r.rank_timed, r.queue,
        r.lane, r.cls, r.kind, CASE WHEN get_bit(r.asked, p) = 1 THEN B'1' END,
        CASE WHEN r.facts IS NOT NULL THEN forebay.slice(r.facts, r.size - r.n + p, 1) END,
        forebay.slice(r.bodies, r.size - r.n + p, 1)
    FROM part AS r, unnest(places) AS p;
END
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
        last_id, rank, due_at, enqueued_at, rank_base, n, size, cost, delivery, attempt, max_attempts, state, single,
        rank_timed, queue, lane, cls, kind, facts, bodies
    )
    SELECT p.last_id, r.rank, r.due_at, r.enqueued_at, r.rank_base, p.n, p.n, r.cost, r.delivery, r.attempt,
        r.max_attempts, r.state, p.single, r.rank_timed, r.queue, r.lane, r.cls, r.kind,
        forebay.slice(r.facts, p.skip::integer, p.n::integer), forebay.slice(r.bodies, p.skip::integer, p.n::integer)
    FROM whole AS r, part AS p
    WHERE p.n > 0;
END
$$;

-- Runs that a claim took whose answer was lost are handed back: the holder does not know of them. Queues of those that are
-- left, as their locks are not held alone; NULL: a spec has changed.
CREATE FUNCTION forebay.hand_back(
    at bigint, v_alone integer[], v_beside integer[], names text[], versions integer[],
    v_holder integer, singles boolean[], lasts bigint[]
) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_freed forebay.freed[];
BEGIN
    PERFORM forebay.lock(v_alone, v_beside);
    IF NOT forebay.is_current(names, versions) THEN
        RETURN NULL;
    END IF;
    v_now := coalesce(at, forebay.clock());
    WITH lost AS (
        SELECT r.single, r.last_id, r.claimed_at FROM forebay.run AS r
        WHERE r.state = 2 AND r.holder = v_holder AND r.beat AND r.gone IS NULL AND r.queue = ANY (names)
            AND NOT EXISTS (
                SELECT FROM unnest(singles, lasts) AS u (single, last_id)
                WHERE u.single = r.single AND u.last_id = r.last_id
            )
        FOR UPDATE
    ), back AS (
        UPDATE forebay.run AS r
        SET state = CASE WHEN r.line IS NULL THEN 1 ELSE 0 END, attempt = r.attempt - 1, holder = NULL, lease_until = NULL,
            claimed_at = NULL, rank = forebay.rank_back(r.rank, r.rank_timed)
        FROM lost WHERE r.single = lost.single AND r.last_id = lost.last_id
        RETURNING r.*, lost.claimed_at AS since
    ), told AS (
        INSERT INTO forebay.ledger (at, verb, spans)
        SELECT v_now, 'hand_back', json_agg(json_build_array(
            'released', r.last_id - r.n + 1, r.n, r.queue, r.kind, r.delivery, r.attempt + 1, 0, r.enqueued_at, r.due_at,
            r.since, r.due_at, CASE WHEN r.facts::text LIKE '%"kind"%' THEN forebay.kinds(r.facts, r.size - r.n, r.n) END
        ) ORDER BY r.last_id)
        FROM back AS r, forebay.ledger_rule AS l WHERE l.recording
        HAVING count(*) > 0
    )
    SELECT array_agg(ROW(r.queue, r.lane, r.line, r.gates, r.cost * r.n)::forebay.freed)
        FILTER (WHERE v_alone <> '{}' OR r.line IS NOT NULL OR r.lane <> '')
    INTO v_freed FROM back AS r;
    IF v_freed IS NOT NULL THEN
        PERFORM pg_notify('forebay', n.queue)
        FROM (SELECT DISTINCT unnest(forebay.give_back(v_now, v_freed, true)) AS queue) AS n;
    END IF;
    RETURN ARRAY(
        SELECT DISTINCT r.queue FROM forebay.run AS r
        WHERE r.state = 2 AND r.holder = v_holder AND r.beat AND r.gone IS NULL AND r.queue <> ALL (names)
    );
END
$$;
