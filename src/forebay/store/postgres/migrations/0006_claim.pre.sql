-- Claim: what becomes ready, what is handed out, and when there will be work. One round trip and one commit; `at` is NULL
-- in production: the server's clock alone decides.
--
-- Here and in the next files rows are named by two arrays, and joined to them. The conditions `= ANY (…)` beside the join
-- look superfluous: they restrict the look-up in the primary key to these rows, whatever the statistics say of a table
-- that is full one minute and empty the next. Without them a plan may scan the whole index, dead entries included. A
-- function that is called from such a function runs under its settings, unless it sets its own.

-- Due runs of a queue become ready.
CREATE FUNCTION forebay.ripen(v_now bigint, v_queue text, most integer) RETURNS integer
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
        ORDER BY r.due_at, r.last_id LIMIT most FOR UPDATE SKIP LOCKED
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

-- Whether there is anything to look after before a claim: jobs that expired, jobs that SQL users put.
CREATE FUNCTION forebay.stirs(v_now bigint) RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT EXISTS (SELECT FROM forebay.run WHERE expires_at IS NOT NULL AND state <> 2 AND expires_at <= v_now)
            OR EXISTS (SELECT FROM forebay.inbox)
    );
END
$$;

-- A run with its jobs, as callers read it. `places`: where its jobs stand among those of the claim; NULL: by rank.
CREATE TYPE forebay.claimed AS (
    flag integer, stamp bigint, want integer, rank bigint, single boolean, last_id bigint, n integer, size integer, state smallint,
    queue text, kind text, due_at bigint, enqueued_at bigint, delivery integer, attempt integer, max_attempts integer,
    claimed_at bigint, lease_until bigint, expires_at bigint, errors text, facts json, bodies json,
    gone text, asked text, owner text, beat boolean, places integer[]
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

-- A lane that a claim may take from: the turn of its class and what a start costs it, how many jobs of the class and how many
-- runs of the lane are read. `many`: its class has others. Behind the turn `upto`, classes that were not read may come before;
-- behind (`upto_rank`, `upto_id`), lanes of the class.
CREATE TYPE forebay.candidate AS (
    lane text, cls text, gates text[], turn bigint, step bigint, upto bigint, upto_rank bigint, upto_id bigint,
    give integer, per integer, many boolean
);

-- The open lanes that the next jobs of a queue come from.
CREATE FUNCTION forebay.candidates(q forebay.queue, v_cls text, v_need integer) RETURNS forebay.candidate[]
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        WITH class AS (
            SELECT * FROM (
                SELECT c.cls, c.turn, coalesce((q.weights ->> c.cls)::integer, q.weight) AS weight FROM forebay.class AS c
                WHERE q.weight IS NOT NULL AND c.queue = q.name AND c.open AND (v_cls IS NULL OR c.cls = v_cls)
                ORDER BY c.turn LIMIT v_need + 1
            ) AS c
            UNION ALL
            SELECT '', 0, NULL WHERE q.weight IS NULL
        ), giving AS MATERIALIZED (
            SELECT c.cls, c.turn, coalesce(720720000 / c.weight, 0) AS step,
                CASE WHEN count(*) OVER () = 1 THEN v_need
                    ELSE least(v_need, 2 + 2 * v_need * c.weight / sum(c.weight) OVER ()) END AS give,
                CASE WHEN count(*) OVER () > v_need THEN max(c.turn) OVER () ELSE 9223372036854775807 END AS upto
            FROM class AS c
        )
        SELECT array_agg(ROW(
            l.lane, l.cls, l.gates, l.turn, l.step, l.upto, CASE WHEN l.lanes >= 4 * l.give THEN l.last_rank END,
            CASE WHEN l.lanes >= 4 * l.give THEN l.last_id END, l.give,
            CASE WHEN l.lanes = 1 THEN l.give ELSE least(l.give, 2 + 3 * l.give / (2 * l.lanes)) END, l.lanes > 1
        )::forebay.candidate)
        FROM (
            SELECT l.lane, l.gates, g.*, count(*) OVER (PARTITION BY g.cls) AS lanes,
                first_value(l.rank) OVER (PARTITION BY g.cls ORDER BY l.rank DESC, l.id DESC) AS last_rank,
                first_value(l.id) OVER (PARTITION BY g.cls ORDER BY l.rank DESC, l.id DESC) AS last_id
            FROM giving AS g CROSS JOIN LATERAL (
                SELECT l.lane, l.gates, l.rank, l.id FROM forebay.lane AS l
                WHERE l.queue = q.name AND l.cls = g.cls AND l.at IS NULL ORDER BY l.rank, l.id LIMIT 4 * g.give
            ) AS l
        ) AS l
    );
END
$$;

-- Hand out jobs of a queue with lanes, in the order of the engine's `take`: round by round, each as far as what was read is
-- surely next. The lock of the queue is held alone. Returns the runs, and the places of their jobs among those handed out.
CREATE FUNCTION forebay.take(
    v_now bigint, v_until bigint, me integer, v_beat boolean, v_queue text, v_cls text, v_need integer,
    OUT singles boolean[], OUT lasts bigint[], OUT places text[]
)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on SET enable_hashjoin = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    q forebay.queue;
    r record;
    v_part forebay.claimed;
    c forebay.candidate[];
    w_names text[]; w_stamped integer[]; w_slots integer[]; w_steps bigint[]; w_rooms bigint[]; w_used bigint;
    w_count integer;
    g_names text[]; g_stamped integer[]; g_slots integer[]; g_steps bigint[]; g_rooms bigint[]; g_used bigint[];
    p_lanes text[]; p_classes text[]; p_costs integer[]; p_turns bigint[]; p_ranks bigint[]; p_ids bigint[];
    v_shut boolean[]; s_lanes text[]; s_classes text[]; s_gates integer[]; s_costs integer[];
    s_ranks bigint[]; s_ids bigint[];
    t_singles boolean[]; t_lasts bigint[]; t_places integer[]; t_lanes text[]; t_classes text[]; t_steps bigint[];
    v_turn bigint;
    v_gate integer;
    v_place integer := 0;
    v_met integer := 0;
    v_again boolean;
    v_beyond boolean;
    v_full boolean := false;
    v_names text[];
BEGIN
    SELECT * INTO q FROM forebay.queue AS k WHERE k.name = v_queue;
    SELECT array_agg(g.name), array_agg(g.stamped), array_agg(g.slots), array_agg(g.step), array_agg(g.room)
    INTO w_names, w_stamped, w_slots, w_steps, w_rooms FROM forebay.whole_gates(v_now, v_queue) AS g;
    w_count := coalesce(cardinality(w_names), 0);
    IF NOT EXISTS (SELECT FROM forebay.lane AS l WHERE l.queue = v_queue AND l.lane = '')
        AND EXISTS (SELECT FROM forebay.run AS j WHERE j.state = 1 AND j.queue = v_queue AND j.lane = '') THEN
        PERFORM forebay.refresh(v_now, v_queue, ARRAY['']);
    END IF;
    IF v_cls IS NOT NULL AND q.weight IS NOT NULL THEN
        -- It does not wait until other classes were at the gates that have room.
        UPDATE forebay.lane AS l SET at = NULL, opens_at = NULL
        WHERE l.queue = v_queue AND l.cls = v_cls AND l.at IS NOT NULL;
        IF FOUND THEN
            PERFORM forebay.sort_classes(v_queue, ARRAY[v_cls]);
        END IF;
    END IF;
    SELECT array_agg(l.at) INTO v_names FROM forebay.lane AS l WHERE l.queue = v_queue AND l.opens_at <= v_now;
    IF v_names IS NOT NULL THEN
        PERFORM forebay.wake(v_now, v_names);
    END IF;
    WHILE v_need > 0 AND v_met < 4000 LOOP
        c := forebay.candidates(q, v_cls, v_need);
        EXIT WHEN c IS NULL;
        SELECT array_agg(g.name), array_agg(g.stamped), array_agg(g.slots), array_agg(g.step), array_agg(g.room),
            array_agg(0), array_agg(p.lane), array_agg(p.cls), array_agg(p.cost), array_agg(p.turn), array_agg(p.rank),
            array_agg(p.id)
        INTO g_names, g_stamped, g_slots, g_steps, g_rooms, g_used, p_lanes, p_classes, p_costs, p_turns, p_ranks, p_ids
        FROM forebay.lane_gates(v_now, v_queue, ARRAY(
            SELECT DISTINCT n.name FROM unnest(c) AS l CROSS JOIN LATERAL unnest(l.gates) AS n (name)
        )) AS g
        LEFT JOIN LATERAL (
            SELECT p.* FROM (
                SELECT l.at, l.queue FROM forebay.lane AS l WHERE l.at = g.name AND l.queue = v_queue LIMIT 1
            ) AS l CROSS JOIN LATERAL forebay.parked(l.at, l.queue, q.weight IS NOT NULL, 1) AS p
        ) AS p ON true;
        v_shut := array_fill(false, ARRAY[cardinality(c)]);
        s_lanes := '{}'; s_classes := '{}'; s_gates := '{}'; s_costs := '{}'; s_ranks := '{}'; s_ids := '{}';
        t_singles := '{}'; t_lasts := '{}'; t_places := '{}'; t_lanes := '{}'; t_classes := '{}'; t_steps := '{}';
        w_used := 0;
        v_names := '{}';
        v_again := false;
        v_beyond := false;
        FOR r IN
            WITH lane AS MATERIALIZED (
                SELECT l.*, ARRAY(
                    SELECT array_position(g_names, n.name) FROM unnest(l.gates) AS n (name) WHERE n.name = ANY (g_names)
                ) AS numbers
                FROM unnest(c) WITH ORDINALITY AS l (
                    lane, cls, gates, turn, step, upto, upto_rank, upto_id, give, per, many, place
                )
            )
            SELECT l.place, l.lane, l.cls, l.gates, l.step, l.upto, j.single, j.last_id, j.rank, j.cost, l.numbers, l.many,
                l.turn + (row_number() OVER (PARTITION BY l.cls ORDER BY j.rank, j.last_id, j.i) - 1) * l.step AS turn,
                j.i = least(j.n, l.give) AND (
                    j.n > l.give OR dense_rank() OVER (PARTITION BY l.place ORDER BY j.rank, j.last_id) = l.per
                ) AS ends,
                coalesce((j.rank, j.last_id) > (l.upto_rank, l.upto_id), false) AS beyond
            FROM lane AS l CROSS JOIN LATERAL (
                SELECT f.*, generate_series(1, least(f.n, l.give)) AS i FROM (
                    SELECT j.single, j.last_id, j.rank, j.cost, j.n FROM forebay.run AS j
                    WHERE j.state = 1 AND j.queue = v_queue AND j.lane = l.lane
                        AND (j.expires_at IS NULL OR j.expires_at > v_now) AND (v_cls IS NULL OR j.cls = v_cls)
                    ORDER BY j.rank, j.last_id LIMIT l.per
                ) AS f
            ) AS j
            ORDER BY turn, j.rank, j.last_id, j.i
        LOOP
            v_beyond := r.beyond;
            EXIT WHEN v_beyond OR r.turn > r.upto;
            IF NOT v_shut[r.place] THEN
                FOR i IN 1 .. w_count LOOP
                    v_full := v_full OR least(r.cost, greatest(w_slots[i], 1)) > w_rooms[i];
                END LOOP;
                EXIT WHEN v_full;
                v_gate := 0;
                FOREACH v_gate IN ARRAY r.numbers LOOP
                    EXIT WHEN least(r.cost, greatest(g_slots[v_gate], 1)) > g_rooms[v_gate];
                    IF (p_turns[v_gate], p_ranks[v_gate], p_ids[v_gate]) < (r.turn, r.rank, r.last_id) THEN
                        -- Nothing passes the head of a lane that is parked there; there may be room for it by now.
                        v_again := p_classes[v_gate] = ANY (t_classes)
                            OR least(p_costs[v_gate], greatest(g_slots[v_gate], 1)) <= g_rooms[v_gate];
                        EXIT;
                    END IF;
                    v_gate := 0;
                END LOOP;
                EXIT WHEN v_again;
                IF v_gate > 0 THEN
                    -- Nothing that comes later passes this head at the gate.
                    v_shut[r.place] := true;
                    g_rooms[v_gate] := 0;
                    s_lanes := s_lanes || r.lane;
                    s_classes := s_classes || r.cls;
                    s_gates := s_gates || v_gate;
                    s_costs := s_costs || r.cost;
                    s_ranks := s_ranks || r.rank;
                    s_ids := s_ids || r.last_id;
                    v_names := v_names || array_remove(r.gates, g_names[v_gate]);
                    EXIT WHEN r.many AND q.weight IS NOT NULL;
                ELSE
                    FOR i IN 1 .. w_count LOOP
                        w_rooms[i] := w_rooms[i] - r.cost;
                    END LOOP;
                    FOREACH v_gate IN ARRAY r.numbers LOOP
                        g_rooms[v_gate] := g_rooms[v_gate] - r.cost;
                        g_used[v_gate] := g_used[v_gate] + r.cost;
                    END LOOP;
                    w_used := w_used + r.cost;
                    v_place := v_place + 1;
                    v_need := v_need - 1;
                    v_turn := r.turn;
                    t_singles := t_singles || r.single;
                    t_lasts := t_lasts || r.last_id;
                    t_places := t_places || v_place;
                    t_lanes := t_lanes || r.lane;
                    IF q.weight IS NOT NULL THEN
                        t_classes := t_classes || r.cls;
                        t_steps := t_steps || r.step;
                    END IF;
                END IF;
            END IF;
            EXIT WHEN v_need = 0 OR r.ends;
        END LOOP;
        EXIT WHEN t_lasts = '{}' AND s_lanes = '{}' AND NOT (v_again OR v_beyond);
        IF t_lasts = '{}' AND s_lanes = '{}' AND v_beyond THEN
            v_met := v_met + 1;
            PERFORM forebay.refresh(v_now, v_queue, ARRAY(SELECT l.lane FROM unnest(c) AS l), true);
        END IF;
        IF t_lasts <> '{}' THEN
            WITH taken AS MATERIALIZED (
                SELECT t.single, t.last_id, array_agg(t.place ORDER BY t.place) AS places
                FROM unnest(t_singles, t_lasts, t_places) AS t (single, last_id, place) GROUP BY t.single, t.last_id
            ), started AS (
                UPDATE forebay.run AS j
                SET state = 2, attempt = j.attempt + 1, delivery = j.delivery + 1, holder = me, beat = v_beat,
                    claimed_at = greatest(v_now, j.due_at), lease_until = v_until, merges = false
                FROM taken AS t
                WHERE j.single = t.single AND j.last_id = t.last_id AND j.n = cardinality(t.places)
                RETURNING j.single, j.last_id, t.places::text AS places
            )
            SELECT take.singles || array_agg(s.single), take.lasts || array_agg(s.last_id), take.places || array_agg(s.places)
            INTO singles, lasts, places FROM started AS s;
            FOR r IN
                SELECT t.last_id, array_agg(t.place ORDER BY t.place) AS places
                FROM unnest(t_singles, t_lasts, t_places) AS t (single, last_id, place)
                JOIN forebay.run AS j ON NOT j.single AND j.last_id = t.last_id AND j.state + 0 = 1
                WHERE NOT t.single GROUP BY t.last_id
            LOOP
                v_part := forebay.split(false, r.last_id, cardinality(r.places), me, v_now, v_until, v_beat, 0);
                singles := singles || false;
                lasts := lasts || v_part.last_id;
                places := places || r.places::text;
            END LOOP;
            IF w_names || g_names IS NOT NULL THEN
                PERFORM forebay.use_gates(
                    v_now, w_names || g_names, w_stamped || g_stamped, w_steps || g_steps,
                    array_fill(w_used, ARRAY[w_count]) || g_used
                );
            END IF;
            IF q.weight IS NOT NULL THEN
                UPDATE forebay.class AS k SET turn = k.turn + t.n * t.step
                FROM (
                    SELECT t.cls, t.step, count(*) AS n FROM unnest(t_classes, t_steps) AS t (cls, step) GROUP BY 1, 2
                ) AS t
                WHERE k.queue = v_queue AND k.cls = t.cls;
                IF v_cls IS NULL THEN
                    INSERT INTO forebay.share VALUES (v_queue, v_turn)
                    ON CONFLICT (queue) DO UPDATE SET turn = excluded.turn;
                END IF;
            END IF;
        END IF;
        IF s_lanes <> '{}' THEN
            v_met := v_met + cardinality(s_lanes);
            UPDATE forebay.lane AS l SET at = g_names[s.gate], rank = s.rank, id = s.id, opens_at = forebay.opens_at((
                SELECT g.tat FROM forebay.gate AS g WHERE g.name = g_names[s.gate]
            ), g_slots[s.gate], s.cost, g_steps[s.gate])
            FROM unnest(s_lanes, s_gates, s_costs, s_ranks, s_ids) AS s (lane, gate, cost, rank, id)
            WHERE l.queue = v_queue AND l.lane = s.lane;
            IF q.weight IS NOT NULL THEN
                PERFORM forebay.sort_classes(v_queue, s_classes);
            END IF;
        END IF;
        IF t_lasts <> '{}' THEN
            PERFORM forebay.refresh(v_now, v_queue, t_lanes, (c[1]).upto_rank IS NOT NULL);
        END IF;
        IF v_names <> '{}' THEN
            PERFORM forebay.wake(v_now, v_names);
        END IF;
        IF v_again AND p_classes[v_gate] <> ALL (t_classes) THEN
            v_met := v_met + 1;
            UPDATE forebay.lane AS l SET at = NULL, opens_at = NULL WHERE l.queue = v_queue AND l.lane = p_lanes[v_gate];
            IF q.weight IS NOT NULL THEN
                PERFORM forebay.sort_classes(v_queue, ARRAY[p_classes[v_gate]]);
            END IF;
        END IF;
        EXIT WHEN v_full;
    END LOOP;
    IF v_turn IS NOT NULL AND q.weight IS NOT NULL AND v_cls IS NULL THEN
        DELETE FROM forebay.class AS k WHERE k.ctid = ANY (ARRAY(
            SELECT i.ctid FROM forebay.class AS i WHERE i.queue = v_queue AND i.idle AND i.turn <= v_turn LIMIT 100
        ));
    END IF;
END
$$;

-- Hand out. A row may say instead: 1, something is to be looked after first; 2, a spec has changed; 3, a queue has lanes of
-- an older spec, so that its lock is needed alone. Nothing has been handed out then.
-- `alone`: by want, whether the lock of its queue is. `rows`: how many runs the caller expects to need for a want, so that no
-- more are locked than are taken.
-- `leads`, `floors`: where to begin among those who lead (ranks below zero) and among the others; NULL: at the front.
-- An old snapshot keeps dead entries in the index, and walking over all of them would take longer and longer.
CREATE FUNCTION forebay.claim(
    at bigint, tended boolean, me integer, span bigint, v_alone integer[], v_beside integer[], alone boolean[],
    names text[], versions integer[], classes text[], counts integer[], rows integer[], leads bigint[], floors bigint[]
) RETURNS SETOF forebay.claimed
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now bigint;
    v_until bigint;
    v_queue record;
    v_need integer;
    v_rows integer;
    v_got integer;
    v_whole integer;
    v_fits bigint;
    v_spent bigint;
    v_beat boolean;
    v_from bigint;
    v_to bigint;
    v_singles boolean[];
    v_lasts bigint[];
    v_sizes integer[];
    v_costs integer[];
    v_places text[];
    g_names text[]; g_stamped integer[]; g_slots integer[]; g_steps bigint[]; g_rooms bigint[];
    v_part forebay.claimed;
    v_told_singles boolean[] := '{}';
    v_told_lasts bigint[] := '{}';
BEGIN
    PERFORM forebay.lock(v_alone, v_beside);
    v_now := coalesce(at, forebay.clock());
    v_until := v_now + span;
    IF NOT tended AND (
        EXISTS (
            SELECT FROM forebay.run AS r WHERE r.expires_at IS NOT NULL AND r.state <> 2 AND r.expires_at <= v_now
        )
        OR EXISTS (SELECT FROM forebay.inbox)
    ) THEN
        RETURN NEXT forebay.nothing(1, v_now);
        RETURN;
    END IF;
    SELECT bool_or(coalesce(q.version, 0) <> u.version) AS changed, bool_or(NOT u.alone AND (
        SELECT true FROM forebay.lane AS l WHERE l.queue = u.name LIMIT 1
    )) AS laned INTO v_queue
    FROM unnest(names, versions, alone) AS u (name, version, alone) LEFT JOIN forebay.queue AS q ON q.name = u.name;
    IF v_queue.changed OR v_queue.laned THEN
        RETURN NEXT forebay.nothing(CASE WHEN v_queue.changed THEN 2 ELSE 3 END, v_now);
        RETURN;
    END IF;
    -- A heartbeat that reaches beyond the new leases must not make them last longer than they say.
    SELECT h.until <= v_until INTO v_beat FROM forebay.holder AS h WHERE h.id = me;
    v_beat := coalesce(v_beat, false);
    FOR i IN 1 .. cardinality(names) LOOP
        CONTINUE WHEN counts[i] = 0;
        SELECT q.paused_until, q.whole <> '[]' AS gated, q.laned OR alone[i] AND (
            SELECT true FROM forebay.lane AS l WHERE l.queue = names[i] LIMIT 1
        ) AS laned INTO v_queue FROM forebay.queue AS q WHERE q.name = names[i];
        CONTINUE WHEN v_queue.paused_until > v_now;
        v_need := counts[i];
        IF EXISTS (SELECT FROM forebay.run AS r WHERE r.state = 3 AND r.queue = names[i] AND r.due_at <= v_now) THEN
            PERFORM forebay.ripen(v_now, names[i], 1000);
        END IF;
        IF v_queue.laned THEN
            SELECT t.singles, t.lasts, t.places INTO v_singles, v_lasts, v_places
            FROM forebay.take(v_now, v_until, me, v_beat, names[i], classes[i], v_need) AS t;
            RETURN QUERY
            SELECT 0, v_now, i, r.rank, r.single, r.last_id, r.n, r.size, r.state, r.queue, r.kind, r.due_at, r.enqueued_at,
                r.delivery, r.attempt, r.max_attempts, r.claimed_at, r.lease_until, r.expires_at, r.errors, r.facts, r.bodies,
                NULL::text, r.asked::text, NULL::text, r.beat, u.places::integer[]
            FROM unnest(v_singles, v_lasts, v_places) AS u (single, last_id, places)
            JOIN forebay.run AS r ON r.single = u.single AND r.last_id = u.last_id
            WHERE r.single = ANY (v_singles) AND r.last_id = ANY (v_lasts);
            v_told_singles := v_told_singles || v_singles;
            v_told_lasts := v_told_lasts || v_lasts;
            CONTINUE;
        END IF;
        CONTINUE WHEN classes[i] <> '';
        g_names := NULL;
        v_spent := 0;
        IF v_queue.gated THEN
            SELECT array_agg(g.name), array_agg(g.stamped), array_agg(g.slots), array_agg(g.step), array_agg(g.room)
            INTO g_names, g_stamped, g_slots, g_steps, g_rooms FROM forebay.whole_gates(v_now, names[i]) AS g;
        END IF;
        v_rows := least(rows[i], v_need);
        v_from := coalesce(leads[i], -9223372036854775808);
        v_to := CASE WHEN floors[i] IS NULL THEN 9223372036854775807 ELSE 0 END;
        WHILE v_need > 0 LOOP
            SELECT array_agg(c.single), array_agg(c.last_id), array_agg(c.n), array_agg(c.cost)
            INTO v_singles, v_lasts, v_sizes, v_costs
            FROM (
                SELECT r.single, r.last_id, r.n, r.cost FROM forebay.run AS r
                WHERE r.state = 1 AND r.queue = names[i] AND r.lane = '' AND r.rank >= v_from AND r.rank < v_to
                    AND (r.expires_at IS NULL OR r.expires_at > v_now)
                ORDER BY r.rank, r.last_id LIMIT v_rows FOR UPDATE SKIP LOCKED
            ) AS c;
            v_got := coalesce(cardinality(v_lasts), 0);
            v_whole := 0;
            WHILE v_whole < v_got LOOP
                v_fits := v_need;
                IF g_names IS NOT NULL THEN
                    FOR g IN 1 .. cardinality(g_names) LOOP
                        v_fits := least(v_fits, forebay.fitting(g_rooms[g], g_slots[g], v_costs[v_whole + 1]));
                    END LOOP;
                    v_fits := least(v_fits, v_sizes[v_whole + 1]);
                    v_spent := v_spent + v_fits * v_costs[v_whole + 1];
                    FOR g IN 1 .. cardinality(g_names) LOOP
                        g_rooms[g] := g_rooms[g] - v_fits * v_costs[v_whole + 1];
                    END LOOP;
                END IF;
                EXIT WHEN v_sizes[v_whole + 1] > v_fits;
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
                    r.expires_at, r.errors, r.facts, r.bodies, NULL::text, r.asked::text, NULL::text, r.beat,
                    NULL::integer[];
                v_told_singles := v_told_singles || v_singles[:v_whole];
                v_told_lasts := v_told_lasts || v_lasts[:v_whole];
            END IF;
            IF v_whole < v_got THEN
                -- Some of the next run, or nothing: the queue has come to what it may give.
                IF v_fits > 0 THEN
                    v_part := forebay.split(
                        v_singles[v_whole + 1], v_lasts[v_whole + 1], v_fits::integer, me, v_now, v_until, v_beat, i
                    );
                    RETURN NEXT v_part;
                    v_told_singles := v_told_singles || v_part.single;
                    v_told_lasts := v_told_lasts || v_part.last_id;
                END IF;
                v_need := 0;
            END IF;
            IF v_got < v_rows THEN
                EXIT WHEN v_to > 0;
                v_from := floors[i];
                v_to := 9223372036854775807;
            END IF;
            v_rows := least(v_need, v_rows * 4);
        END LOOP;
        IF v_spent > 0 THEN
            PERFORM forebay.use_gates(
                v_now, g_names, g_stamped, g_steps, array_fill(v_spent, ARRAY[cardinality(g_names)])
            );
        END IF;
    END LOOP;
    -- What fell due and was made ready by others after this call began is taken no earlier than it was due.
    IF cardinality(v_told_lasts) > 0 THEN
        INSERT INTO forebay.ledger (at, verb, owner, spans)
        SELECT greatest(v_now, max(r.due_at)), 'claim', (SELECT h.owner FROM forebay.holder AS h WHERE h.id = me), json_agg(json_build_array(
            'claimed', r.last_id - r.n + 1, r.n, r.queue, r.kind, r.delivery, r.attempt, 0, r.enqueued_at, r.due_at,
            r.claimed_at, v_until, CASE WHEN r.facts::text LIKE '%"kind"%' THEN forebay.kinds(r.facts, r.size - r.n, r.n) END
        ) ORDER BY u.place)
        FROM forebay.ledger_rule AS l, unnest(v_told_singles, v_told_lasts) WITH ORDINALITY AS u (single, last_id, place)
        JOIN forebay.run AS r ON r.single = u.single AND r.last_id = u.last_id
        WHERE l.recording AND r.single = ANY (v_told_singles) AND r.last_id = ANY (v_told_lasts)
        HAVING count(*) > 0;
    END IF;
END
$$;

-- When there is work in these queues (0: now; later if they pause), when something falls due, when a lease runs out; and
-- whether there is something to look after. `leads`, `floors`: as in `claim`.
CREATE FUNCTION forebay.work_at(
    at bigint, queues text[], leads bigint[], floors bigint[], silent integer[], silent_floors bigint[], alone_floor bigint
)
RETURNS TABLE (ready_at bigint, due_at bigint, lease_until bigint, stirs boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
-- Planned anew in every call otherwise, which takes longer than the answer.
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT
        (
            SELECT min(greatest(coalesce(q.paused_until, 0), w.at)) FROM unnest(queues, leads, floors) AS u (name, lead, floor)
            LEFT JOIN forebay.queue AS q ON q.name = u.name CROSS JOIN LATERAL (
                -- Not EXISTS: the planner may make a hash of all rows for that.
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
        EXISTS (SELECT FROM forebay.inbox);
END
$$;
