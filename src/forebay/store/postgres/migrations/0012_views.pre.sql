-- Public views, and counts of what gates and lines hold.

-- Every job in every state, a row each.
CREATE VIEW forebay.jobs AS
SELECT
    r.last_id - r.n + 1 + i.place AS id,
    r.queue,
    coalesce(r.facts -> (r.size - r.n + i.place) ->> 'kind', r.kind) AS kind,
    CASE WHEN r.state = 1 OR (r.state = 3 AND r.due_at <= forebay.clock()) THEN 'ready' ELSE 'waiting' END AS state,
    r.bodies -> (r.size - r.n + i.place) AS payload,
    r.attempt,
    r.max_attempts,
    r.delivery,
    r.facts -> (r.size - r.n + i.place) ->> 'tenant' AS tenant,
    r.facts -> (r.size - r.n + i.place) ->> 'subject' AS subject,
    r.facts -> (r.size - r.n + i.place) ->> 'key' AS key,
    to_timestamp(r.enqueued_at / 1000000.0) AS enqueued_at,
    to_timestamp(r.due_at / 1000000.0) AS due_at,
    NULL AS owner,
    NULL::timestamptz AS lease_until,
    NULL::timestamptz AS finished_at,
    (SELECT l.at FROM forebay.lane AS l WHERE r.state = 1 AND l.queue = r.queue AND l.lane = r.lane) AS parked_at,
    r.errors::json AS errors,
    NULL::json AS result
FROM forebay.run AS r
CROSS JOIN LATERAL generate_series(0, r.n - 1) AS i (place)
UNION ALL
SELECT
    r.last_id - r.n + 1 + i.place, r.queue, coalesce(r.facts -> (r.size - r.n + i.place) ->> 'kind', r.kind), 'running',
    r.bodies -> (r.size - r.n + i.place), r.attempt, r.max_attempts, r.delivery,
    r.facts -> (r.size - r.n + i.place) ->> 'tenant', r.facts -> (r.size - r.n + i.place) ->> 'subject',
    r.facts -> (r.size - r.n + i.place) ->> 'key', to_timestamp(r.enqueued_at / 1000000.0), to_timestamp(r.due_at / 1000000.0),
    h.owner, to_timestamp(forebay.leased_until(r.by_heartbeat, r.lease_until, r.holder) / 1000000.0), NULL, NULL, r.errors::json, NULL
FROM forebay.running AS r
CROSS JOIN LATERAL generate_series(0, r.n - 1) AS i (place)
LEFT JOIN forebay.holder AS h ON h.id = r.holder
WHERE r.settled IS NULL OR get_bit(r.settled, i.place) = 0
UNION ALL
SELECT
    e.id, e.queue, e.kind, CASE e.state WHEN 3 THEN 'done' WHEN 4 THEN 'dead' ELSE 'cancelled' END, e.body, e.attempt,
    e.max_attempts, e.delivery, e.facts ->> 'tenant', e.facts ->> 'subject', e.facts ->> 'key',
    to_timestamp(e.enqueued_at / 1000000.0), to_timestamp(e.due_at / 1000000.0), NULL, NULL,
    to_timestamp(e.finished_at / 1000000.0), NULL, e.errors::json, e.result
FROM forebay.ended AS e
UNION ALL
SELECT
    i.id, coalesce(i.draft ->> 'queue', 'default'), i.draft ->> 'kind', 'waiting', i.draft -> 'body', 0, NULL, 0,
    i.draft ->> 'tenant', i.draft ->> 'subject', i.draft ->> 'key', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM forebay.inbox AS i;

-- How many lines of a queue a dead head blocks, of the first `max_lines` lines that have dead jobs.
CREATE FUNCTION forebay.blocked_lines(v_queue text, max_lines integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT e.line, min(e.id) AS id FROM forebay.ended AS e
            WHERE e.state = 4 AND e.blocks AND e.line >= 'order/' || v_queue || '/'
                AND e.line < 'order/' || v_queue || '0'
            GROUP BY e.line ORDER BY e.line LIMIT max_lines
        ) AS d
        WHERE NOT EXISTS (
            SELECT FROM forebay.run AS r WHERE r.line = d.line AND least(r.state, 1) = 0 AND r.last_id < d.id
        ) AND NOT EXISTS (
            SELECT FROM forebay.run AS r WHERE r.line = d.line AND least(r.state, 1) = 1 AND r.last_id < d.id
        ) AND NOT EXISTS (
            SELECT FROM forebay.running_line AS l WHERE l.line = d.line AND l.id < d.id
        )
    );
END
$$;

-- Ready jobs of lanes that are parked, those of a queue or those at a gate; at most `max_jobs`.
CREATE FUNCTION forebay.parked_jobs(v_now bigint, v_queue text, v_gate text, max_jobs integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        -- A lane may still be parked where there is room again: room for one opens one lane.
        WITH parked AS MATERIALIZED (
            (SELECT l.queue, l.lane, l.at FROM forebay.lane AS l WHERE l.queue = v_queue AND l.at IS NOT NULL LIMIT max_jobs)
            UNION ALL
            (SELECT l.queue, l.lane, l.at FROM forebay.lane AS l WHERE l.at = v_gate LIMIT max_jobs)
        ), closed AS MATERIALIZED (
            SELECT q.queue, g.name, g.room
            FROM (SELECT p.queue, array_agg(DISTINCT p.at) AS names FROM parked AS p GROUP BY p.queue) AS q
            CROSS JOIN LATERAL forebay.lane_gates(v_now, q.queue, q.names) AS g
        )
        SELECT least(max_jobs, coalesce(sum(f.n), 0)) FROM (
            SELECT r.n FROM parked AS p JOIN closed AS c ON c.queue = p.queue AND c.name = p.at CROSS JOIN LATERAL (
                SELECT r.n FROM forebay.run AS r WHERE r.state = 1 AND r.queue = p.queue AND r.lane = p.lane LIMIT max_jobs
            ) AS r
            WHERE c.room < (
                SELECT r.cost FROM forebay.run AS r WHERE r.state = 1 AND r.queue = p.queue AND r.lane = p.lane
                ORDER BY r.rank, r.last_id LIMIT 1
            )
            LIMIT max_jobs
        ) AS f
    );
END
$$;

-- Ready jobs that are parked at each of these gates, of those that have any; at most `max_jobs` a gate.
CREATE FUNCTION forebay.parked_at(v_now bigint, v_gates text[], max_jobs integer) RETURNS TABLE (name text, jobs bigint)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT g.name, forebay.parked_jobs(v_now, NULL, g.name, max_jobs) FROM unnest(v_gates) AS g (name)
    WHERE (SELECT true FROM forebay.lane AS l WHERE l.at = g.name LIMIT 1);
END
$$;

-- Ready jobs of a queue behind a closed gate, as far as claims have met it; at most `max_jobs`.
CREATE FUNCTION forebay.held_jobs(v_now bigint, v_queue text, max_jobs integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    IF EXISTS (SELECT FROM forebay.whole_gates(v_now, v_queue) AS g WHERE g.room < 1) THEN
        RETURN (
            SELECT least(max_jobs, coalesce(sum(f.n), 0)) FROM (
                SELECT r.n FROM forebay.run AS r WHERE r.state = 1 AND r.queue = v_queue LIMIT max_jobs
            ) AS f
        );
    END IF;
    RETURN forebay.parked_jobs(v_now, v_queue, NULL, max_jobs);
END
$$;
