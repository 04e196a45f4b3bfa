-- Enqueue: the function of the store, keys that are taken by the state of their job, and the functions for SQL users.

-- Alike neighbours of one call of enqueue, as far as all of them have a value in common. `upto`: how many jobs of the call
-- there are up to the last of them; `gates`: the JSON of their names.
CREATE TYPE forebay.draft_run AS (
    upto integer, n integer, queue text, cls text, lane text, gates text, cost integer, kind text, delay bigint, run_at bigint,
    base bigint, timed smallint, max_attempts integer, expires_at bigint
);

-- Insert runs. `first` -1: a spec has changed. A repeated call gets the answer of the first. The runs are
-- one list: a list for each column would be unnested by a function of its own.
CREATE FUNCTION forebay.insert_runs(
    at bigint, token uuid, exclusive_keys integer[], names text[], versions integer[], runs forebay.draft_run[], facts json[],
    bodies json[]
) RETURNS TABLE (first bigint, stamp bigint)
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_locked boolean := forebay.lock_queues(exclusive_keys, '{}');
    v_now bigint := coalesce(at, forebay.clock());
    v_first bigint := nextval('forebay.job_id');
    v_lane record;
BEGIN
    WITH call AS (
        INSERT INTO forebay.call (token, first_id, at) VALUES (insert_runs.token, v_first, v_now) ON CONFLICT (token) DO NOTHING RETURNING at
    ), inserted AS (
        INSERT INTO forebay.run (
            last_id, rank, due_at, enqueued_at, rank_base, expires_at, n, size, cost, max_attempts, state, single, rank_timed,
            queue, lane, cls, kind, gates, facts, bodies
        )
        SELECT
            v_first + r.upto - 1,
            forebay.rank_at(r.base, r.timed, r.due_at, v_now), r.due_at, v_now, r.base, r.expires_at, r.n, r.n, r.cost,
            r.max_attempts,
            CASE WHEN r.due_at > v_now THEN 3 ELSE 1 END, r.n = 1,
            r.timed, r.queue, r.lane, r.cls, r.kind,
            CASE WHEN r.gates IS NOT NULL THEN ARRAY(SELECT jsonb_array_elements_text(r.gates::jsonb)) END, r.facts, r.bodies
        FROM (
            SELECT u.*, CASE WHEN u.run_at IS NULL THEN v_now + u.delay ELSE greatest(v_now, u.run_at) END AS due_at
            FROM unnest(runs, facts, bodies) AS u (
                upto, n, queue, cls, lane, gates, cost, kind, delay, run_at, base, timed, max_attempts, expires_at, facts, bodies
            )
        ) AS r
        WHERE EXISTS (SELECT FROM call) AND NOT EXISTS (
            SELECT FROM unnest(names, versions) AS u (name, version)
            WHERE coalesce((SELECT q.version FROM forebay.queue AS q WHERE q.name = u.name), 0) <> u.version
        )
        RETURNING last_id, n, queue, kind, max_attempts, due_at, facts
    ), recorded AS (
        INSERT INTO forebay.ledger (at, verb, ranges)
        SELECT v_now, 'enqueue', ('[' || string_agg(forebay.ledger_range(
            change => 'accepted', first => b.last_id - b.n + 1, n => b.n, queue => b.queue, kind => b.kind, delivery => 0,
            attempt => 0, max_attempts => b.max_attempts, enqueued_at => v_now, due_at => b.due_at, claimed_at => 0,
            until => 0, tail => coalesce(',' || b.facts::text, '')
        ), ',') || ']')::json
        FROM inserted AS b, forebay.ledger_rule AS l WHERE l.recording
        HAVING count(*) > 0
    )
    SELECT v_first, v_now INTO insert_runs.first, insert_runs.stamp FROM inserted LIMIT 1;
    IF NOT FOUND THEN
        DELETE FROM forebay.call AS c WHERE c.token = insert_runs.token AND c.first_id = v_first;
        -- The row lock makes it a write: its commit waits until a synchronous standby has the first call, too.
        PERFORM FROM forebay.call AS c WHERE c.token = insert_runs.token FOR SHARE;
        RETURN QUERY SELECT coalesce((SELECT c.first_id FROM forebay.call AS c WHERE c.token = insert_runs.token), -1), v_now;
        RETURN;
    END IF;
    IF exclusive_keys <> '{}' THEN
        FOR v_lane IN
            SELECT u.queue, array_agg(DISTINCT u.lane) AS lanes FROM unnest(runs) AS u
            JOIN forebay.queue AS q ON q.name = u.queue AND q.laned GROUP BY u.queue
        LOOP
            PERFORM forebay.refresh(v_now, v_lane.queue, v_lane.lanes);
        END LOOP;
    END IF;
    RETURN NEXT;
END
$$;

-- Insert one run of a queue without lanes, and return the id of its first job. NULL: a spec has changed or the call is
-- repeated, and insert_runs with the same token has the answer. For a single job, reading lists costs almost as much as all else.
CREATE FUNCTION forebay.insert_run(
    at bigint, token uuid, v_version integer, v_n integer, v_queue text, v_cost integer, v_kind text, v_delay bigint,
    v_run_at bigint, v_base bigint, v_timed smallint, v_max_attempts integer, v_expires_at bigint, v_facts json, v_bodies json
) RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint := coalesce(at, forebay.clock());
    v_due bigint := CASE WHEN v_run_at IS NULL THEN v_now + v_delay ELSE greatest(v_now, v_run_at) END;
    v_first bigint := nextval('forebay.job_id');
    v_inserted bigint;
BEGIN
    WITH call AS (
        INSERT INTO forebay.call (token, first_id, at) SELECT insert_run.token, v_first, v_now
        WHERE coalesce((SELECT q.version FROM forebay.queue AS q WHERE q.name = v_queue), 0) = v_version
        ON CONFLICT (token) DO NOTHING RETURNING first_id
    ), recorded AS (
        INSERT INTO forebay.ledger (at, verb, ranges)
        SELECT v_now, 'enqueue', ('[' || forebay.ledger_range(
            change => 'accepted', first => c.first_id, n => v_n, queue => v_queue, kind => v_kind, delivery => 0,
            attempt => 0, max_attempts => v_max_attempts, enqueued_at => v_now, due_at => v_due, claimed_at => 0, until => 0,
            tail => coalesce(',' || v_facts::text, '')
        ) || ']')::json
        FROM call AS c, forebay.ledger_rule AS l WHERE l.recording
    )
    INSERT INTO forebay.run (
        last_id, rank, due_at, enqueued_at, rank_base, expires_at, n, size, cost, max_attempts, state, single, rank_timed, queue,
        lane, cls, kind, facts, bodies
    )
    SELECT c.first_id + v_n - 1, forebay.rank_at(v_base, v_timed, v_due, v_now), v_due, v_now, v_base, v_expires_at, v_n, v_n,
        v_cost, v_max_attempts, CASE WHEN v_due > v_now THEN 3 ELSE 1 END, v_n = 1, v_timed, v_queue, '', '', v_kind, v_facts,
        v_bodies
    FROM call AS c
    RETURNING last_id - n + 1 INTO v_inserted;
    RETURN v_inserted;
END
$$;

-- Whether a job is in one of these states. VOLATILE: it reads what was committed after the calling statement began.
CREATE FUNCTION forebay.in_states(v_id bigint, v_states integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_state smallint;
BEGIN
    SELECT CASE r.state WHEN 3 THEN 0 ELSE r.state END INTO v_state
    FROM forebay.find(ARRAY[v_id]) AS f, LATERAL (
        SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0
    ) AS r
    UNION ALL
    SELECT 2 FROM forebay.find_running(ARRAY[v_id]);
    IF NOT FOUND THEN
        SELECT e.state INTO v_state FROM forebay.ended AS e WHERE e.id = v_id;
    END IF;
    IF NOT FOUND THEN
        SELECT 0 INTO v_state FROM forebay.inbox AS i WHERE i.id = v_id;
    END IF;
    RETURN coalesce((v_states >> v_state) & 1 = 1, false);
END
$$;

-- Before a key is taken by state: its row is deleted unless its job is in one of the states.
-- With its owner's rights: a role that may only enqueue needs no right to read jobs or to delete keys.
CREATE FUNCTION forebay.free_key() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM forebay.key AS k
    WHERE k.queue = NEW.queue AND k.key = NEW.key AND k.until >= 7258118400000000 AND NOT forebay.in_states(
        k.job_id, coalesce((SELECT q.unique_states FROM forebay.queue AS q WHERE q.name = NEW.queue), 7)
    );
    RETURN NEW;
END
$$;
CREATE TRIGGER free_key BEFORE INSERT ON forebay.key FOR EACH ROW EXECUTE FUNCTION forebay.free_key();

-- Enqueue a draft in the caller's transaction. Returns the job's id, or that of the job that has the key (payloads are
-- compared if both came by SQL or both by Python). Where more than the time matters (ranks, shares, gates, bounds) the job goes to
-- the inbox, and becomes a dead letter if its queue cannot accept it.
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
    v_max_attempts integer;
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
        INSERT INTO forebay.inbox (id, draft) VALUES (v_id, draft);
        RETURN v_id;
    END IF;
    v_max_attempts := coalesce((draft ->> 'max_attempts')::integer, v_known.max_attempts, 25);
    v_due := greatest(v_now + coalesce((draft ->> 'delay')::bigint, 0), (draft ->> 'run_at')::bigint);
    v_facts := jsonb_strip_nulls(jsonb_build_object(
        'tenant', draft ->> 'tenant', 'subject', draft ->> 'subject', 'key', v_key,
        'priority', nullif((draft ->> 'priority')::integer, 0), 'deadline', (draft ->> 'deadline')::bigint,
        'meta', draft -> 'meta', 'cost', nullif((draft ->> 'cost')::integer, 1)
    ));
    INSERT INTO forebay.run (
        last_id, rank, due_at, enqueued_at, rank_base, n, size, cost, max_attempts, state, single, rank_timed, queue,
        lane, cls, kind, facts, bodies
    )
    VALUES (
        v_id, forebay.rank_at(0, 2::smallint, v_due, v_now), v_due, v_now, 0, 1, 1,
        coalesce((draft ->> 'cost')::integer, 1), v_max_attempts, CASE WHEN v_due > v_now THEN 3 ELSE 1 END, true,
        2, v_queue, '', '', v_kind, CASE WHEN v_facts <> '{}' THEN json_build_array(v_facts) END, json_build_array(v_body)
    );
    INSERT INTO forebay.ledger (at, verb, ranges)
    SELECT v_now, 'enqueue', json_build_array(json_build_array(
        'accepted', v_id, 1, v_queue, v_kind, 0, 0, v_max_attempts, v_now, v_due, 0, 0,
        CASE WHEN v_facts <> '{}' THEN json_build_array(v_facts) END
    ))
    FROM forebay.ledger_rule AS l WHERE l.recording;
    RETURN v_id;
END
$$;

-- The same with named arguments. Workers are notified at the commit unless `notify` is false, which is for bulk.
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
