-- Settle: verdicts, and rows of jobs that leave their packs and runs.

-- Take the first `count` jobs of a ready run; the rest stays in its row.
CREATE FUNCTION forebay.split(v_run tid, count integer) RETURNS forebay.member
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_member forebay.member;
BEGIN
    WITH rest AS (
        UPDATE forebay.run AS r SET n = r.n - count WHERE r.ctid = v_run RETURNING r.*
    )
    SELECT r.last_id - r.n, r.rank, r.due_at, r.enqueued_at, r.rank_base, r.expires_at, count, count, r.cost, r.delivery + 1,
        r.attempt + 1, r.max_attempts, r.settled_delivery, r.rank_timed, r.blocks, r.cancel_requested, r.lane, r.cls, r.kind,
        r.settled_code, r.line, r.gates, r.errors, forebay.slice(r.facts, r.size - r.n - count, count),
        forebay.slice(r.bodies, r.size - r.n - count, count)
    INTO v_member FROM rest AS r;
    RETURN v_member;
END
$$;

-- A member whose jobs a call of settle lists: the number of the pack in the call, that of the member in the pack, and
-- columns of the pack.
CREATE TYPE forebay.touched AS (number integer, member integer, queue text, cancel_requested bit varying, run forebay.member);

-- The commit point. The verdicts of a pack are applied if none of their jobs was settled before and, if `renewed` is given,
-- the lease was not extended since; a pack without a row was settled. Where all jobs of a pack have verdicts, the server
-- handles members whose jobs are acknowledged and not kept; the call lists all other jobs.
--
--   holder_ids  the holders of this process
--   packs       their ids
--   bits        by pack: the jobs that have verdicts; NULL: all
--   touched     by pack: the members of listed jobs, from the first on, as bits
--   memo_…      the settles of listed jobs that are deleted, neighbours in one element
--   outs        listed jobs that become rows of their own, and the texts of their failures
--   ranges      of the ledger, for listed jobs: a line for each pack
--
-- Returns the numbers of the packs to which it was applied; NULL: a spec has changed, and nothing was applied.
CREATE FUNCTION forebay.settle(
    at bigint, exclusive_keys integer[], shared_keys integer[], names text[], versions integer[], holder_ids integer[],
    packs bigint[], bits text[], touched text[], renewed bigint[], memo_packs integer[], memo_firsts bigint[],
    memo_sizes integer[], memo_deliveries integer[], memo_codes text[], outs json, ranges text
) RETURNS integer[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_done integer[];
    v_parts integer[];
    v_holders integer[];
    v_more integer[];
    v_freed forebay.freed[];
    v_touched forebay.touched[];
    v_others forebay.touched[];
    v_ranges text;
BEGIN
    IF NOT (CASE WHEN forebay.lock_queues(exclusive_keys, shared_keys) THEN forebay.is_current(names, versions) END) THEN
        RETURN NULL;
    END IF;
    v_now := coalesce(at, forebay.clock());
    WITH deleted AS (
        DELETE FROM forebay.pack AS p
        USING unnest(packs, bits, touched, renewed) WITH ORDINALITY AS u (pack, bits, touched, renewed, number)
        WHERE p.id = ANY (packs) AND u.bits IS NULL AND p.id = u.pack AND p.settled IS NULL
            AND (u.renewed IS NULL OR forebay.leased_until(p.by_heartbeat, p.lease_until, p.holder) <= u.renewed)
        RETURNING u.number::integer AS number, u.touched, p.holder, p.queue, p.plain, p.claimed_at, p.cancel_requested, p.members
    ), member AS MATERIALIZED (
        SELECT g.queue, g.plain, g.claimed_at, m.last_id, m.n, m.kind, m.delivery, m.attempt, m.enqueued_at,
            m.due_at, m.lane, m.line, m.gates, m.cost,
            forebay.kinds(m.facts, m.size - m.n, m.n) AS kinds,
            substr(g.touched, m.ordinality::integer, 1) = '1' AS listed,
            CASE WHEN substr(g.touched, m.ordinality::integer, 1) = '1' THEN ROW(g.number, m.ordinality, g.queue, g.cancel_requested, ROW(
                m.last_id, m.rank, m.due_at, m.enqueued_at, m.rank_base, m.expires_at, m.n, m.size, m.cost, m.delivery, m.attempt,
                m.max_attempts, m.settled_delivery, m.rank_timed, m.blocks, m.cancel_requested, m.lane, m.cls, m.kind, m.settled_code, m.line,
                m.gates, m.errors, m.facts, m.bodies
            ))::forebay.touched END AS touched
        FROM deleted AS g CROSS JOIN LATERAL unnest(g.members) WITH ORDINALITY AS m
    ), memo AS (
        INSERT INTO forebay.settled (jobs, firsts, sizes, deliveries, codes)
        SELECT sum(m.n), array_agg(m.last_id - m.n + 1), array_agg(m.n), array_agg(m.delivery), array_agg('a'::text)
        FROM member AS m WHERE NOT m.listed HAVING count(*) > 0
    )
    -- Jobs of an older spec may have lines and lanes that the queue does not have any more.
    SELECT p.numbers, p.holders, j.freed, j.ranges, j.touched INTO v_done, v_holders, v_freed, v_ranges, v_touched
    FROM (SELECT array_agg(g.number) AS numbers, array_agg(g.holder) AS holders FROM deleted AS g) AS p, (
        SELECT array_agg(ROW(m.queue, m.lane, m.line, m.gates, m.cost * m.n, m.last_id)::forebay.freed)
                FILTER (WHERE exclusive_keys <> '{}' OR NOT m.plain) AS freed,
            string_agg(forebay.ledger_range(
                'acked', m.last_id - m.n + 1, m.n, m.queue, m.kind, m.delivery, m.attempt, 0, m.enqueued_at, m.due_at,
                greatest(m.claimed_at, m.due_at), 0, m.kinds
            ), ',') FILTER (WHERE NOT m.listed) AS ranges,
            array_agg(m.touched) FILTER (WHERE m.listed) AS touched
        FROM member AS m
    ) AS j;
    IF cardinality(array_remove(bits, NULL)) > 0 THEN
        WITH part AS (
            UPDATE forebay.pack AS p SET settled = coalesce(p.settled, repeat('0', p.n)::bit varying) | u.bits::bit varying
            FROM unnest(packs, bits, touched, renewed) WITH ORDINALITY AS u (pack, bits, touched, renewed, number)
            WHERE p.id = ANY (packs) AND u.bits IS NOT NULL AND p.id = u.pack AND p.n = length(u.bits)
                AND (p.settled IS NULL OR bit_count(p.settled & u.bits::bit varying) = 0)
                AND (u.renewed IS NULL OR forebay.leased_until(p.by_heartbeat, p.lease_until, p.holder) <= u.renewed)
            RETURNING u.number::integer AS number, u.touched, p.holder, p.plain, p.queue, p.cancel_requested,
                CASE WHEN u.touched <> '' THEN p.members END AS members
        )
        SELECT array_agg(p.number), array_agg(p.holder),
            v_freed || forebay.freed_by(packs, bits, array_agg(p.number) FILTER (WHERE exclusive_keys <> '{}' OR NOT p.plain)),
            (
                SELECT array_agg(ROW(g.number, m.ordinality, g.queue, g.cancel_requested, ROW(
                    m.last_id, m.rank, m.due_at, m.enqueued_at, m.rank_base, m.expires_at, m.n, m.size, m.cost, m.delivery,
                    m.attempt, m.max_attempts, m.settled_delivery, m.rank_timed, m.blocks, m.cancel_requested, m.lane, m.cls, m.kind,
                    m.settled_code, m.line, m.gates, m.errors, m.facts, m.bodies
                ))::forebay.touched)
                FROM part AS g CROSS JOIN LATERAL unnest(g.members) WITH ORDINALITY AS m
                WHERE substr(g.touched, m.ordinality::integer, 1) = '1'
            )
        INTO v_parts, v_more, v_freed, v_others FROM part AS p;
        DELETE FROM forebay.pack AS p WHERE p.id = ANY (ARRAY(SELECT packs[u.number] FROM unnest(v_parts) AS u (number)))
            AND bit_count(p.settled) = p.n;
        v_done := v_done || v_parts;
    END IF;
    IF outs IS NOT NULL THEN
        PERFORM forebay.extract_members(v_now, v_touched || v_others, outs);
    END IF;
    IF ranges <> '' THEN
        INSERT INTO forebay.settled (jobs, firsts, sizes, deliveries, codes)
        SELECT sum(m.size), array_agg(m.first), array_agg(m.size), array_agg(m.delivery), array_agg(m.code)
        FROM unnest(memo_packs, memo_firsts, memo_sizes, memo_deliveries, memo_codes) AS m (pack, first, size, delivery, code)
        WHERE m.pack = ANY (v_done)
        HAVING count(*) > 0;
        v_ranges := concat_ws(',', v_ranges, (
            SELECT string_agg(t.line, ',' ORDER BY t.number)
            FROM unnest(string_to_array(ranges, E'\n')) WITH ORDINALITY AS t (line, number)
            WHERE t.line <> '' AND t.number = ANY (v_done)
        ));
    END IF;
    INSERT INTO forebay.ledger (at, verb, ranges) SELECT v_now, 'settle', ('[' || v_ranges || ']')::json
    FROM forebay.ledger_rule AS l WHERE l.recording AND cardinality(v_done) > 0;
    IF v_freed IS NOT NULL THEN
        PERFORM pg_notify('forebay', n.queue)
        FROM (SELECT DISTINCT unnest(forebay.give_back(v_now, v_freed, outs IS NOT NULL)) AS queue) AS n
        WHERE n.queue <> ALL (names);
    END IF;
    IF NOT holder_ids @> array_remove(v_holders || v_more, NULL) THEN
        UPDATE forebay.holder AS h SET changes = h.changes + 1
        WHERE h.id = ANY (v_holders || v_more) AND h.id <> ALL (holder_ids);
    END IF;
    RETURN coalesce(v_done, '{}');
END
$$;

-- What the jobs in `bits` give back, of the packs with these numbers.
CREATE FUNCTION forebay.freed_by(packs bigint[], bits text[], numbers integer[]) RETURNS forebay.freed[]
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_nestloop = off
AS $$
    SELECT array_agg(ROW(r.queue, r.lane, r.line, r.gates, r.cost * r.ended, r.last_id)::forebay.freed)
    FROM (
        SELECT r.*, length(replace(substr(bits[u.number], r.base + 1, r.n), '0', '')) AS ended
        FROM unnest(numbers) AS u (number) JOIN forebay.running AS r ON r.pack = packs[u.number]
        WHERE r.pack = ANY (packs)
    ) AS r
    WHERE r.ended > 0
$$;

-- Jobs leave their packs to be retried or kept. Codes: a done, c cancelled, d dead, r retried, l released. `at`: the position
-- of a job in its member, `position`: in its pack. Lists of a member are read once and not copied for each of its jobs.
-- `error`: the number of its text among the `errors` of the call, which jobs that failed alike share; a text lacks the
-- instant of the last failure, which is now.
CREATE FUNCTION forebay.extract_members(v_now bigint, touched forebay.touched[], outs json)
RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_mergejoin = off SET enable_nestloop = off
AS $$
#variable_conflict use_column
DECLARE
    v_errors text[] := ARRAY(SELECT e || v_now || ']]' FROM json_array_elements_text(outs -> 'errors') AS e);
BEGIN
    WITH member AS MATERIALIZED (
        SELECT t.number AS pack, t.member AS number, t.queue, t.cancel_requested AS requested, (t.run).* FROM unnest(touched) AS t
    ), element AS MATERIALIZED (
        SELECT r.pack, r.number, e.place - 1 - r.size + r.n AS at, e.body, e.fact
        FROM member AS r CROSS JOIN LATERAL ROWS FROM (json_array_elements(r.bodies), json_array_elements(r.facts)) WITH ORDINALITY
            AS e (body, fact, place)
        WHERE r.size > 1
    ), job AS MATERIALIZED (
        SELECT o.id, o.code, v_now + o.after AS next_at, v_errors[o.error] AS failures, v_now + o.keep AS kept_until,
            o.result::json AS result, o.queue AS elsewhere, o.keep_rank, coalesce(get_bit(r.requested, o.position) = 1, false) AS is_requested,
            CASE WHEN r.size = 1 THEN r.facts WHEN e.fact IS NOT NULL THEN json_build_array(e.fact) END AS facts,
            CASE WHEN r.size = 1 THEN r.bodies ELSE json_build_array(e.body) END AS bodies, r.rank, r.due_at, r.enqueued_at,
            r.rank_base, r.expires_at, r.cost, r.delivery, r.attempt, r.max_attempts, r.rank_timed, r.blocks, r.lane, r.cls, r.kind,
            r.line, r.gates, r.errors, r.queue
        FROM json_to_recordset(outs -> 'jobs') AS o (
            pack integer, id bigint, member integer, at integer, position integer, code text, after bigint, error integer, keep bigint,
            result text, queue text, keep_rank boolean
        )
        JOIN member AS r ON r.pack = o.pack AND r.number = o.member
        LEFT JOIN element AS e ON e.pack = o.pack AND e.number = o.member AND e.at = o.at
    ), kept AS (
        INSERT INTO forebay.ended (
            id, due_at, enqueued_at, finished_at, kept_until, expires_at, rank_base, delivery, attempt, max_attempts,
            settled_delivery, state, rank_timed, cancel_requested, queue, cls, kind, settled_code, cost, blocks, lane, line,
            gates, errors, facts, body, result, home
        )
        SELECT j.id, j.due_at, j.enqueued_at, v_now, j.kept_until, j.expires_at, j.rank_base, j.delivery, j.attempt,
            j.max_attempts, j.delivery, CASE j.code WHEN 'a' THEN 3 WHEN 'd' THEN 4 ELSE 5 END, j.rank_timed, j.is_requested,
            coalesce(j.elsewhere, j.queue), j.cls, j.kind, j.code, j.cost, j.blocks, j.lane, j.line, j.gates,
            coalesce(j.failures, j.errors), j.facts -> 0, j.bodies -> 0, j.result, CASE WHEN j.elsewhere IS NOT NULL THEN j.queue END
        FROM job AS j WHERE j.code IN ('a', 'c', 'd')
    )
    INSERT INTO forebay.run (
        last_id, rank, due_at, enqueued_at, rank_base, expires_at, n, size, cost, delivery, attempt, max_attempts,
        settled_delivery, state, single, rank_timed, blocks, cancel_requested, queue, lane, cls, kind, settled_code, line, gates, errors,
        facts, bodies
    )
    SELECT j.id, forebay.requeue_rank(j.keep_rank, j.rank, j.rank_base, j.rank_timed, v_now, j.next_at), j.next_at, j.enqueued_at,
        j.rank_base, j.expires_at, 1, 1, j.cost, j.delivery, j.attempt - (j.code = 'l')::integer, j.max_attempts, j.delivery,
        CASE WHEN j.line IS NOT NULL THEN 0 WHEN j.next_at > v_now THEN 3 ELSE 1 END, true, j.rank_timed, j.blocks, j.is_requested,
        j.queue, j.lane, j.cls, j.kind, j.code, j.line, j.gates, coalesce(j.failures, j.errors), j.facts, j.bodies
    FROM job AS j WHERE j.code IN ('r', 'l');
END
$$;

-- The last settles of those of these jobs that were deleted.
CREATE FUNCTION forebay.removed_settles(ids bigint[]) RETURNS TABLE (id bigint, delivery integer, code text)
LANGUAGE sql STABLE
AS $$
    SELECT i.id, m.delivery, m.code
    FROM unnest(ids) AS i (id), forebay.settled AS s,
        unnest(s.firsts, s.sizes, s.deliveries, s.codes) AS m (first, size, delivery, code)
    WHERE i.id >= m.first AND i.id < m.first + m.size
$$;

-- The runs of these jobs.
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
    ) AS r
$$;

-- The members of packs of these jobs, and the position of each job in its pack.
CREATE FUNCTION forebay.find_running(ids bigint[]) RETURNS TABLE (id bigint, "position" integer, run forebay.running)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_packs bigint[] := ARRAY(
        SELECT DISTINCT p.id FROM unnest(ids) AS i (id) CROSS JOIN LATERAL (
            SELECT p.id FROM forebay.pack AS p WHERE p.ids @> i.id OFFSET 0
        ) AS p
    );
BEGIN
    IF v_packs <> '{}' THEN
        RETURN QUERY
        SELECT i.id, r.base + j.at, r FROM forebay.running AS r CROSS JOIN LATERAL generate_series(0, r.n - 1) AS j (at)
        JOIN (SELECT DISTINCT unnest(ids) AS id) AS i ON i.id = r.last_id - r.n + 1 + j.at
        WHERE r.pack = ANY (v_packs) AND (r.settled IS NULL OR get_bit(r.settled, j.at) = 0);
    END IF;
END
$$;

-- The jobs of a pack except those at some positions become a pack of their own that keeps their lease.
CREATE FUNCTION forebay.split_pack(v_pack bigint, v_kept integer[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    p forebay.pack;
    v_positions integer[];
BEGIN
    SELECT * INTO p FROM forebay.pack AS p WHERE p.id = v_pack FOR UPDATE;
    v_positions := ARRAY(
        SELECT i FROM generate_series(0, p.n - 1) AS i WHERE (p.settled IS NULL OR get_bit(p.settled, i) = 0) AND i <> ALL (v_kept)
    );
    IF v_positions = '{}' THEN
        RETURN;
    END IF;
    UPDATE forebay.pack AS u SET settled = coalesce(p.settled, repeat('0', p.n)::bit varying) | (
        SELECT string_agg(CASE WHEN i = ANY (v_positions) THEN '1' ELSE '0' END, '' ORDER BY i)
        FROM generate_series(0, p.n - 1) AS i
    )::bit varying
    WHERE u.id = p.id;
    INSERT INTO forebay.pack (lease_until, claimed_at, n, holder, by_heartbeat, plain, queue, ids, cancel_requested, members)
    SELECT forebay.leased_until(p.by_heartbeat, p.lease_until, p.holder), p.claimed_at, count(*), p.holder, false, p.plain, p.queue,
        int8range(min(j.id), max(j.id), '[]'), string_agg(coalesce(get_bit(p.cancel_requested, j.position), 0)::text, '' ORDER BY j.position)::bit varying,
        array_agg(ROW(
            j.id, j.rank, j.due_at, j.enqueued_at, j.rank_base, j.expires_at, 1, 1, j.cost, j.delivery, j.attempt, j.max_attempts,
            j.settled_delivery, j.rank_timed, j.blocks, false, j.lane, j.cls, j.kind, j.settled_code, j.line, j.gates, j.errors,
            forebay.slice(j.facts, j.size - j.n + j.position - j.base, 1), forebay.slice(j.bodies, j.size - j.n + j.position - j.base, 1)
        )::forebay.member ORDER BY j.position)
    FROM (
        SELECT r.*, u.position, r.last_id - r.n + 1 + u.position - r.base AS id
        FROM forebay.running AS r JOIN unnest(v_positions) AS u (position) ON u.position >= r.base AND u.position < r.base + r.n
        WHERE r.pack = p.id
    ) AS j;
END
$$;

-- Extract one job of a run as a run of its own in the same state.
CREATE FUNCTION forebay.extract(v_last bigint, v_id bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    WITH whole AS (
        DELETE FROM forebay.run AS r
        WHERE NOT r.single AND r.last_id = v_last AND r.last_id - r.n < v_id
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

-- Release packs of claims whose replies were lost: all of the holder that it has not listed. Returns the queues of those that
-- are left since their locks are not held; NULL: a spec has changed.
CREATE FUNCTION forebay.release_lost(
    at bigint, exclusive_keys integer[], shared_keys integer[], names text[], versions integer[], v_holder integer, known bigint[]
) RETURNS text[]
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_freed forebay.freed[];
BEGIN
    IF NOT (CASE WHEN forebay.lock_queues(exclusive_keys, shared_keys) THEN forebay.is_current(names, versions) END) THEN
        RETURN NULL;
    END IF;
    v_now := coalesce(at, forebay.clock());
    WITH lost AS (
        DELETE FROM forebay.pack AS p
        WHERE p.holder = v_holder AND p.by_heartbeat AND p.settled IS NULL AND p.queue = ANY (names) AND p.id <> ALL (known)
        RETURNING p.queue, p.claimed_at, p.members
    ), member AS MATERIALIZED (
        SELECT l.queue, greatest(l.claimed_at, m.due_at) AS since, m.* FROM lost AS l CROSS JOIN LATERAL unnest(l.members) AS m
    ), back AS (
        INSERT INTO forebay.run (
            last_id, rank, due_at, enqueued_at, rank_base, expires_at, n, size, cost, delivery, attempt, max_attempts,
            settled_delivery, state, single, rank_timed, blocks, cancel_requested, queue, lane, cls, kind, settled_code, line, gates,
            errors, facts, bodies
        )
        SELECT m.last_id, forebay.rank_back(m.rank, m.rank_timed), m.due_at, m.enqueued_at, m.rank_base, m.expires_at, m.n,
            m.size, m.cost, m.delivery, m.attempt - 1, m.max_attempts, m.settled_delivery,
            CASE WHEN m.line IS NULL THEN 1 ELSE 0 END, m.n = 1 AND m.size = 1, m.rank_timed, m.blocks, m.cancel_requested, m.queue,
            m.lane, m.cls, m.kind, m.settled_code, m.line, m.gates, m.errors, m.facts, m.bodies
        FROM member AS m
    ), recorded AS (
        INSERT INTO forebay.ledger (at, verb, ranges)
        SELECT v_now, 'release_lost', ('[' || string_agg(forebay.ledger_range(
            'released', m.last_id - m.n + 1, m.n, m.queue, m.kind, m.delivery, m.attempt, 0, m.enqueued_at, m.due_at,
            m.since, m.due_at,
            forebay.kinds(m.facts, m.size - m.n, m.n)
        ), ',' ORDER BY m.last_id) || ']')::json
        FROM member AS m, forebay.ledger_rule AS l WHERE l.recording
        HAVING count(*) > 0
    )
    SELECT array_agg(ROW(m.queue, m.lane, m.line, m.gates, m.cost * m.n, m.last_id)::forebay.freed)
        FILTER (WHERE exclusive_keys <> '{}' OR m.line IS NOT NULL OR m.lane <> '')
    INTO v_freed FROM member AS m;
    IF v_freed IS NOT NULL THEN
        PERFORM pg_notify('forebay', n.queue)
        FROM (SELECT DISTINCT unnest(forebay.give_back(v_now, v_freed, true)) AS queue) AS n;
    END IF;
    RETURN ARRAY(
        SELECT DISTINCT p.queue FROM forebay.pack AS p
        WHERE p.holder = v_holder AND p.by_heartbeat AND p.settled IS NULL AND p.queue <> ALL (names) AND p.id <> ALL (known)
    );
END
$$;
