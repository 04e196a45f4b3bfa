-- Maintenance: promotion of due jobs, when there will be work, and limits of dead letters.

-- Whether a claim has to wait for maintenance: expired jobs, jobs in the inbox.
CREATE FUNCTION forebay.needs_maintenance(v_now bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT EXISTS (SELECT FROM forebay.run WHERE expires_at IS NOT NULL AND expires_at <= v_now)
            OR EXISTS (SELECT FROM forebay.inbox)
    );
END
$$;

-- Make all due jobs ready in one statement, except those of queues with lanes, which are returned; and when the next rate
-- opens that holds ready jobs. If maintenance is needed and was not done (`maintained`), nothing is promoted.
CREATE FUNCTION forebay.promote(at bigint, max_jobs integer, maintained boolean)
RETURNS TABLE (ready bigint, next_due bigint, needs_maintenance boolean, stamp bigint, laned text[])
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
    v_needed boolean;
    v_left integer;
    v_whole tid[];
    v_part tid;
BEGIN
    v_needed := forebay.needs_maintenance(v_now)
        OR EXISTS (SELECT FROM forebay.ended AS e WHERE e.kept_until IS NOT NULL AND e.kept_until <= v_now)
        OR EXISTS (SELECT FROM forebay.key AS k WHERE k.until <= v_now - 10000000);
    IF v_needed AND NOT maintained THEN
        RETURN QUERY SELECT 0::bigint, NULL::bigint, true, v_now, NULL::text[];
        RETURN;
    END IF;
    WITH due AS MATERIALIZED (
        SELECT r.ctid AS place, r.n, r.due_at, r.last_id FROM forebay.run AS r
        WHERE r.state = 3 AND r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now) AND r.lane = ''
            AND NOT coalesce((SELECT q.laned FROM forebay.queue AS q WHERE q.name = r.queue), false)
        ORDER BY r.due_at, r.last_id LIMIT max_jobs FOR UPDATE SKIP LOCKED
    ), counted AS (
        SELECT d.place, d.n, sum(d.n) OVER (ORDER BY d.due_at, d.last_id) AS so_far FROM due AS d
    )
    SELECT array_agg(c.place) FILTER (WHERE c.so_far <= max_jobs),
        max_jobs - coalesce(sum(c.n) FILTER (WHERE c.so_far <= max_jobs), 0),
        (array_agg(c.place) FILTER (WHERE c.so_far > max_jobs AND c.so_far - c.n < max_jobs))[1]
    INTO v_whole, v_left, v_part FROM counted AS c;
    UPDATE forebay.run AS r SET state = 1 WHERE r.ctid = ANY (v_whole);
    IF v_part IS NOT NULL THEN
        WITH rest AS (
            UPDATE forebay.run AS r SET n = r.n - v_left WHERE r.ctid = v_part RETURNING r.*
        )
        INSERT INTO forebay.run (
            last_id, rank, due_at, enqueued_at, rank_base, n, size, cost, delivery, attempt, max_attempts, state, single,
            rank_timed, queue, lane, cls, kind, facts, bodies
        )
        SELECT r.last_id - r.n, r.rank, r.due_at, r.enqueued_at, r.rank_base, v_left, v_left, r.cost, r.delivery, r.attempt,
            r.max_attempts, 1, false, r.rank_timed, r.queue, r.lane, r.cls, r.kind,
            forebay.slice(r.facts, r.size - r.n - v_left, v_left),
            forebay.slice(r.bodies, r.size - r.n - v_left, v_left)
        FROM rest AS r;
        v_left := 0;
    END IF;
    RETURN QUERY SELECT (max_jobs - v_left)::bigint,
        least(
            (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 3),
            (SELECT min(l.opens_at) FROM forebay.lane AS l WHERE l.opens_at > v_now),
            (
                SELECT min(w.at) FROM forebay.queue AS q, LATERAL (SELECT forebay.workable_at(v_now, q.name) AS at) AS w
                WHERE q.whole <> '[]' AND q.whole @? '$[*] ? (@.step > 0)' AND w.at > v_now
            )
        ),
        v_needed,
        v_now,
        ARRAY(
            SELECT DISTINCT d.queue FROM (
                SELECT r.queue FROM forebay.run AS r
                WHERE r.state = 3 AND r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now)
                ORDER BY r.due_at LIMIT max_jobs
            ) AS d
        );
END
$$;

-- Make due runs of a queue with lanes ready.
CREATE FUNCTION forebay.promote_due(v_now bigint, v_queue text, max_jobs integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on SET enable_hashjoin = off
AS $$
#variable_conflict use_column
DECLARE
    v_lanes text[];
    v_jobs integer;
BEGIN
    WITH due AS MATERIALIZED (
        SELECT r.single, r.last_id FROM forebay.run AS r
        WHERE r.state = 3 AND r.queue = v_queue AND r.due_at <= v_now AND (r.expires_at IS NULL OR r.expires_at > v_now)
        ORDER BY r.due_at, r.last_id LIMIT max_jobs FOR UPDATE SKIP LOCKED
    ), ready AS (
        UPDATE forebay.run AS r SET state = 1 FROM due WHERE r.single = due.single AND r.last_id = due.last_id
        RETURNING r.lane, r.n
    )
    SELECT array_agg(DISTINCT lane), sum(n) INTO v_lanes, v_jobs FROM ready;
    IF v_lanes <> ARRAY[''] OR (SELECT q.laned FROM forebay.queue AS q WHERE q.name = v_queue) THEN
        PERFORM forebay.refresh(v_now, v_queue, v_lanes);
    END IF;
    RETURN coalesce(v_jobs, 0);
END
$$;

-- When there is work in these queues (0: now; later if they are paused), when a job becomes due, when a lease ends; and
-- whether there is something in the inbox. `leads`, `floors`: as in `claim`.
CREATE FUNCTION forebay.work_at(
    at bigint, queues text[], leads bigint[], floors bigint[], silent integer[], silent_floors bigint[], fixed_floor bigint
)
RETURNS TABLE (ready_at bigint, due_at bigint, lease_until bigint, needs_maintenance boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
-- Otherwise it is planned in every call, which takes longer than its execution.
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT
        (
            SELECT min(greatest(coalesce(q.paused_until, 0), w.at)) FROM unnest(queues, leads, floors) AS u (name, lead, floor)
            LEFT JOIN forebay.queue AS q ON q.name = u.name CROSS JOIN LATERAL (
                -- Not EXISTS, for which the planner may hash all rows.
                SELECT CASE
                    WHEN q.laned OR q.whole <> '[]' OR (
                        SELECT true FROM forebay.lane AS l WHERE l.queue = u.name LIMIT 1
                    ) THEN forebay.workable_at(coalesce(work_at.at, forebay.clock()), u.name)
                    WHEN u.floor IS NULL
                    THEN (SELECT 0 FROM forebay.run AS r WHERE r.state = 1 AND r.queue = u.name LIMIT 1)
                    ELSE coalesce(
                        (
                            SELECT 0 FROM forebay.run AS r
                            WHERE r.state = 1 AND r.queue = u.name AND r.lane = '' AND r.rank >= u.floor LIMIT 1
                        ), (
                            SELECT 0 FROM forebay.run AS r WHERE r.state = 1 AND r.queue = u.name AND r.lane = ''
                                AND r.rank >= coalesce(u.lead, -9223372036854775808) AND r.rank < 0 LIMIT 1
                        )
                    )
                END AS at
            ) AS w
            WHERE w.at IS NOT NULL
        ),
        (SELECT min(r.due_at) FROM forebay.run AS r WHERE r.state = 3),
        least(
            (
                -- The leases of a holder cannot end before its heartbeat does.
                SELECT min(greatest(h.until, l.first)) FROM forebay.holder AS h, LATERAL (
                    SELECT h.until AS first WHERE h.until > forebay.clock()
                    UNION ALL
                    SELECT (
                        SELECT p.lease_until FROM forebay.pack AS p
                        WHERE p.holder = h.id AND p.lease_until > coalesce((
                            SELECT f.floor FROM unnest(silent, silent_floors) AS f (id, floor) WHERE f.id = h.id
                        ), -9223372036854775808)
                        ORDER BY p.lease_until LIMIT 1
                    )
                    WHERE h.until <= forebay.clock()
                ) AS l
                WHERE l.first IS NOT NULL
            ),
            (
                SELECT min(p.lease_until) FROM forebay.pack AS p WHERE NOT p.by_heartbeat AND p.lease_until > fixed_floor
            )
        ),
        EXISTS (SELECT FROM forebay.inbox);
END
$$;

-- Whether any queue limits its dead letters.
CREATE FUNCTION forebay.has_dead_limits() RETURNS boolean
LANGUAGE sql STABLE SET enable_seqscan = off
AS $$ SELECT EXISTS (SELECT FROM forebay.queue AS q WHERE q.max_dead IS NOT NULL) $$;

-- By how many the dead letters of this queue exceed its limit; the row of the queue is locked.
-- Dead letters of a transaction of more than a minute may be counted late: then some are kept too long, never too short.
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
    v_upto := v_row.dead_counted_to;
    IF v_upto IS NULL OR v_upto < v_now - 600000000 THEN
        SELECT count(*) INTO v_new FROM forebay.ended AS e
        WHERE e.queue = v_queue AND e.state = 4 AND e.finished_at <= v_now - 60000000
            AND e.finished_at > coalesce(v_upto, -1);
        v_row.dead_counted := CASE WHEN v_upto IS NULL THEN 0 ELSE v_row.dead_counted END + v_new;
        v_upto := v_now - 60000000;
        UPDATE forebay.queue AS q SET dead_counted = v_row.dead_counted, dead_counted_to = v_upto WHERE q.name = v_queue;
    END IF;
    SELECT count(*) INTO v_new FROM forebay.ended AS e
    WHERE e.queue = v_queue AND e.state = 4 AND e.finished_at > v_upto;
    RETURN v_row.dead_counted + v_new - coalesce(v_row.max_dead, 9223372036854775807);
END
$$;

-- Whether any queue has more dead letters than its limit; queues that another process is checking are skipped.
CREATE FUNCTION forebay.is_over_dead_limit(v_now bigint) RETURNS boolean
LANGUAGE plpgsql SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
BEGIN
    FOR v_queue IN
        SELECT q.name FROM forebay.queue AS q WHERE q.max_dead IS NOT NULL
        ORDER BY q.name FOR UPDATE SKIP LOCKED
    LOOP
        IF forebay.dead_excess(v_now, v_queue) > 0 THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END
$$;

-- Remove the oldest dead letters beyond the limits of their queues, `max_jobs` at a time.
CREATE FUNCTION forebay.purge_excess_dead(v_now bigint, max_jobs integer) RETURNS SETOF forebay.ended
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
    v_excess bigint;
    v_gone integer;
    v_left integer := max_jobs;
BEGIN
    FOR v_queue IN
        SELECT q.name FROM forebay.queue AS q WHERE q.max_dead IS NOT NULL
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
        UPDATE forebay.queue AS q SET dead_counted_to = CASE WHEN q.dead_counted >= v_gone THEN q.dead_counted_to END,
            dead_counted = greatest(0, q.dead_counted - v_gone) WHERE q.name = v_queue;
    END LOOP;
END
$$;
