-- For people with psql, and for programs in any language: a function that enqueues, and a view of all jobs.

-- Put a draft, in the caller's transaction: rolled back means never seen. Returns the job's id; with a key that is known,
-- the first job's (payloads are compared where both came by SQL or both by Python). Queues whose rules need more than the time (ranks, shares, gates, bounds) take the job in a moment
-- later; one that they do not take is a dead letter.
CREATE FUNCTION forebay.enqueue_draft(draft json) RETURNS bigint
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
        'meta', draft -> 'meta'
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

-- The same with names for everything. Workers hear of it at the commit unless `notify` is false, which is for bulk.
CREATE FUNCTION forebay.enqueue(
    kind text, payload json DEFAULT 'null', queue text DEFAULT 'default', delay interval DEFAULT '0',
    run_at timestamptz DEFAULT NULL, priority integer DEFAULT 0, key text DEFAULT NULL, tenant text DEFAULT NULL,
    subject text DEFAULT NULL, max_attempts integer DEFAULT NULL, expires_at timestamptz DEFAULT NULL,
    deadline timestamptz DEFAULT NULL, meta json DEFAULT NULL, notify boolean DEFAULT true
) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog
AS $$
DECLARE
    v_id bigint;
BEGIN
    v_id := forebay.enqueue_draft(json_build_object(
        'kind', kind, 'body', payload, 'queue', queue, 'delay', (extract(epoch FROM delay) * 1000000)::bigint,
        'run_at', (extract(epoch FROM run_at) * 1000000)::bigint, 'priority', priority, 'key', key, 'tenant', tenant,
        'subject', subject, 'max_attempts', max_attempts,
        'expires_at', (extract(epoch FROM expires_at) * 1000000)::bigint,
        'deadline', (extract(epoch FROM deadline) * 1000000)::bigint, 'meta', meta
    ));
    IF notify THEN
        PERFORM pg_notify('forebay', queue);
    END IF;
    RETURN v_id;
END
$$;

-- Every job in every state, a row each.
CREATE VIEW forebay.jobs AS
SELECT
    r.last_id - r.n + 1 + i.place AS id,
    r.queue,
    coalesce(r.facts -> (r.size - r.n + i.place) ->> 'kind', r.kind) AS kind,
    CASE WHEN r.state = 2 THEN 'running' WHEN r.state = 1 OR (r.state = 3 AND r.due_at <= forebay.clock()) THEN 'ready'
        ELSE 'waiting' END AS state,
    r.bodies -> (r.size - r.n + i.place) AS payload,
    r.attempt,
    r.max_attempts,
    r.delivery,
    r.facts -> (r.size - r.n + i.place) ->> 'tenant' AS tenant,
    r.facts -> (r.size - r.n + i.place) ->> 'subject' AS subject,
    r.facts -> (r.size - r.n + i.place) ->> 'key' AS key,
    to_timestamp(r.enqueued_at / 1000000.0) AS enqueued_at,
    to_timestamp(r.due_at / 1000000.0) AS due_at,
    h.owner,
    CASE WHEN r.state = 2
        THEN to_timestamp(forebay.leased_until(r.beat, r.lease_until, r.holder) / 1000000.0) END AS lease_until,
    NULL::timestamptz AS finished_at,
    r.gate AS parked_at,
    r.errors::json AS errors,
    NULL::json AS result
FROM forebay.run AS r
CROSS JOIN LATERAL generate_series(0, r.n - 1) AS i (place)
LEFT JOIN forebay.holder AS h ON h.id = r.holder
WHERE r.gone IS NULL OR get_bit(r.gone, i.place) = 0
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
