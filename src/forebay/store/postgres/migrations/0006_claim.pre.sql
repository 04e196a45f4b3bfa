-- Claim: what becomes ready, what is handed out, and when there will be work. One round trip and one commit; `at` is NULL
-- in production: the server's clock alone decides.
--
-- Here and in the next files rows are named by two arrays, and joined to them. The conditions `= ANY (…)` beside the join
-- look superfluous: they restrict the look-up in the primary key to these rows, whatever the statistics say of a table
-- that is full one minute and empty the next. Without them a plan may scan the whole index, dead entries included. A
-- function that is called from such a function runs under its settings, unless it sets its own.

-- A pack as its holder reads it, in lists of JSON whose brackets are left out, an element a member: `ranges` as the ledger has
-- them; `extents` with the attempts that are allowed, the size, the expiry and whether a cancellation was requested; `bodies`.
-- `traits`: of the few members that have any, the number, facts and errors; NULL: there are none. `lead`, `floor`: the smallest
-- ranks below zero and above; `positions`: those of the jobs in the claim, where lanes gave them, else NULL: they are in order.
CREATE TYPE forebay.claimed AS (
    flag integer, stamp bigint, want integer, pack bigint, n integer, by_heartbeat boolean, lead bigint, floor bigint, ranges text,
    extents text, traits text, bodies text, positions text
);

-- A lane that a claim may take from: the turn of its class and what a start costs it, how many jobs of the class and how many
-- runs of the lane are read. `many`: its class has others. Behind the turn `upto`, classes that were not read may come before;
-- behind (`upto_rank`, `upto_id`), lanes of the class that were not.
CREATE TYPE forebay.candidate AS (
    lane text, cls text, gates text[], turn bigint, step bigint, upto bigint, upto_rank bigint, upto_id bigint,
    give integer, per integer, many boolean
);

-- The open lanes that the next jobs of a queue come from. A class has few: all of them. It has many: the first, one more than
-- jobs are needed and `wide` times as many where heads meet closed gates; these have to stand in their exact places. Of the
-- lanes in `deep` all runs are read that may be needed.
CREATE FUNCTION forebay.candidates(q forebay.queue, v_cls text, v_need integer, wide integer, deep text[])
RETURNS forebay.candidate[]
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
            l.lane, l.cls, l.gates, l.turn, l.step, l.upto, CASE WHEN l.lanes > 4 * l.give THEN l.last_rank END,
            CASE WHEN l.lanes > 4 * l.give THEN l.last_id END, l.give,
            CASE WHEN l.lanes = 1 OR l.lane = ANY (deep) THEN l.give ELSE least(l.give, 2 + 3 * l.give / (2 * l.lanes)) END,
            l.lanes > 1
        )::forebay.candidate)
        FROM (
            SELECT l.lane, l.gates, g.*, l.lanes, l.last_rank, l.last_id
            FROM giving AS g CROSS JOIN LATERAL (
                SELECT l.*, last_value(l.rank) OVER () AS last_rank, last_value(l.id) OVER () AS last_id FROM (
                    SELECT l.*, count(*) OVER () AS lanes, row_number() OVER () AS number FROM (
                        SELECT l.lane, l.gates, l.rank, l.id FROM forebay.lane AS l
                        WHERE l.queue = q.name AND l.cls = g.cls AND l.at IS NULL ORDER BY l.rank, l.id LIMIT 4 * g.give + 1
                    ) AS l
                ) AS l
                WHERE l.lanes <= 4 * g.give OR l.number <= wide * g.give + 1
            ) AS l
        ) AS l
    );
END
$$;

-- Hand out jobs of a queue with lanes, in the order of the engine's `take`: round by round, each as far as what was read is
-- surely next. The lock of the queue is held alone. Returns what it took, and the places of the jobs among those handed out.
--
-- `c` has the candidates of a round. The variables of a prefix are columns of one list, an element a gate, lane or run:
--   w_  gates of the whole queue; `w_used`: what this round started costs
--   g_  gates of the candidates, numbered by `v_gate`
--   p_  the lane that is parked first at each of these gates
--   s_  lanes that met a closed gate in this round and are parked there after it
--   t_  what was taken in this round: runs, an element a job; lanes to look at again; classes, and how far their turns move
CREATE FUNCTION forebay.take(
    v_now bigint, v_queue text, v_cls text, v_need integer, OUT members forebay.member[], OUT places text[]
)
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on SET enable_hashjoin = on
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    q forebay.queue;
    r record;
    c forebay.candidate[];
    w_names text[]; w_stamped integer[]; w_slots integer[]; w_steps bigint[]; w_rooms bigint[]; w_used bigint;
    w_count integer;
    g_names text[]; g_stamped integer[]; g_slots integer[]; g_steps bigint[]; g_rooms bigint[]; g_used bigint[];
    p_lanes text[]; p_classes text[]; p_costs integer[]; p_turns bigint[]; p_ranks bigint[]; p_ids bigint[];
    v_shut boolean[]; s_lanes text[]; s_classes text[]; s_gates integer[]; s_costs integer[];
    s_ranks bigint[]; s_ids bigint[];
    t_runs tid[]; t_lanes text[]; t_classes text[]; t_steps bigint[];
    v_held boolean;
    v_exact boolean;
    v_wide integer := 1;
    v_deep text[] := '{}';
    v_turn bigint;
    v_gate integer;
    v_done integer := 0;
    v_split boolean;
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
            PERFORM forebay.update_class_turns(v_queue, ARRAY[v_cls]);
        END IF;
    END IF;
    SELECT array_agg(l.at) INTO v_names FROM forebay.lane AS l WHERE l.queue = v_queue AND l.opens_at <= v_now;
    IF v_names IS NOT NULL THEN
        PERFORM forebay.wake(v_now, v_names);
    END IF;
    WHILE v_need > 0 AND v_met < 4000 LOOP
        c := forebay.candidates(q, v_cls, v_need, v_wide, v_deep);
        EXIT WHEN c IS NULL;
        v_exact := (c[1]).upto_rank IS NOT NULL;
        SELECT true INTO v_held FROM forebay.lane AS l WHERE l.queue = v_queue AND l.at IS NOT NULL LIMIT 1;
        SELECT array_agg(g.name), array_agg(g.stamped), array_agg(g.slots), array_agg(g.step), array_agg(g.room),
            array_agg(0), array_agg(p.lane), array_agg(p.cls), array_agg(p.cost), array_agg(p.turn), array_agg(p.rank),
            array_agg(p.id)
        INTO g_names, g_stamped, g_slots, g_steps, g_rooms, g_used, p_lanes, p_classes, p_costs, p_turns, p_ranks, p_ids
        FROM forebay.lane_gates(v_now, v_queue, ARRAY(
            SELECT DISTINCT n.name FROM unnest(c) AS l CROSS JOIN LATERAL unnest(l.gates) AS n (name)
        )) AS g
        LEFT JOIN LATERAL (
            SELECT p.* FROM (
                SELECT l.at, l.queue FROM forebay.lane AS l WHERE v_held AND l.at = g.name AND l.queue = v_queue LIMIT 1
            ) AS l CROSS JOIN LATERAL forebay.parked(l.at, l.queue, q.weight IS NOT NULL, 1) AS p
        ) AS p ON true;
        v_shut := array_fill(false, ARRAY[cardinality(c)]);
        s_lanes := '{}'; s_classes := '{}'; s_gates := '{}'; s_costs := '{}'; s_ranks := '{}'; s_ids := '{}';
        t_runs := '{}'; t_lanes := '{}'; t_classes := '{}'; t_steps := '{}';
        w_used := 0;
        v_names := '{}';
        v_again := false;
        v_beyond := false;
        FOR r IN
            WITH lane AS MATERIALIZED (
                SELECT l.* FROM unnest(c) WITH ORDINALITY AS l (
                    lane, cls, gates, turn, step, upto, upto_rank, upto_id, give, per, many, place
                )
            ), numbered AS (
                SELECT l.place, array_agg(g.number ORDER BY n.name) AS numbers
                FROM lane AS l CROSS JOIN LATERAL unnest(l.gates) AS n (name)
                JOIN unnest(g_names) WITH ORDINALITY AS g (name, number) ON g.name = n.name GROUP BY l.place
            )
            SELECT l.place, l.lane, l.cls, l.gates, l.step, l.upto, j.run, j.last_id, j.rank, j.cost, l.many,
                coalesce(g.numbers, '{}') AS numbers,
                l.turn + (row_number() OVER (PARTITION BY l.cls ORDER BY j.rank, j.last_id, j.i) - 1) * l.step AS turn,
                j.i = least(j.n, l.give) AND (j.n > l.give OR j.number = l.per) AS ends,
                j.i = least(j.n, l.give) AND j.number = j.runs AS last,
                coalesce((j.rank, j.last_id) > (l.upto_rank, l.upto_id), false) AS beyond
            FROM lane AS l LEFT JOIN numbered AS g ON g.place = l.place CROSS JOIN LATERAL (
                SELECT f.*, row_number() OVER () AS number, count(*) OVER () AS runs,
                    generate_series(1, least(f.n, l.give)) AS i FROM (
                    SELECT j.ctid AS run, j.last_id, j.rank, j.cost, j.n FROM forebay.run AS j
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
                    v_need := v_need - 1;
                    t_runs := t_runs || r.run;
                    IF r.last OR v_exact THEN
                        t_lanes := t_lanes || r.lane;
                    END IF;
                    IF q.weight IS NOT NULL THEN
                        v_turn := r.turn;
                        t_classes := t_classes || r.cls;
                        t_steps := t_steps || r.step;
                    END IF;
                END IF;
            END IF;
            IF r.ends THEN
                v_deep := v_deep || r.lane;
                EXIT;
            END IF;
            EXIT WHEN v_need = 0;
        END LOOP;
        EXIT WHEN t_runs = '{}' AND s_lanes = '{}' AND NOT (v_again OR v_beyond);
        IF t_runs <> '{}' THEN
            WITH taken AS MATERIALIZED (
                SELECT t.run, array_agg(v_done + t.place ORDER BY t.place) AS places
                FROM unnest(t_runs) WITH ORDINALITY AS t (run, place) GROUP BY t.run
            ), started AS (
                DELETE FROM forebay.run AS j USING taken AS t WHERE j.ctid = t.run AND j.n = cardinality(t.places)
                RETURNING j.last_id, j.line, forebay.member_of(j) AS member, t.places::text AS places
            ), line AS (
                INSERT INTO forebay.running_line (line, id) SELECT s.line, s.last_id FROM started AS s WHERE s.line IS NOT NULL
            )
            SELECT take.members || array_agg(s.member), take.places || array_agg(s.places), count(*) < (SELECT count(*) FROM taken)
            INTO members, places, v_split FROM started AS s;
            IF v_split THEN
                -- What is left are runs of which only some were taken.
                FOR r IN
                    SELECT j.ctid AS run, t.places FROM (
                        SELECT t.run, array_agg(v_done + t.place ORDER BY t.place) AS places
                        FROM unnest(t_runs) WITH ORDINALITY AS t (run, place) GROUP BY t.run
                    ) AS t JOIN forebay.run AS j ON j.ctid = t.run
                LOOP
                    members := members || forebay.split(r.run, cardinality(r.places));
                    places := places || r.places::text;
                END LOOP;
            END IF;
            v_done := v_done + cardinality(t_runs);
            IF w_names || g_names IS NOT NULL THEN
                PERFORM forebay.use_gates(
                    v_now, w_names || g_names, w_stamped || g_stamped, w_steps || g_steps,
                    array_fill(w_used, ARRAY[w_count]) || g_used
                );
            END IF;
            IF q.weight IS NOT NULL THEN
                UPDATE forebay.class AS k SET turn = k.turn + t.n * t.step
                FROM (
                    SELECT t.step, count(*) AS n, (
                        SELECT o.ctid FROM forebay.class AS o WHERE o.queue = v_queue AND o.cls = t.cls
                    ) AS place
                    FROM unnest(t_classes, t_steps) AS t (cls, step) GROUP BY t.cls, t.step
                ) AS t
                WHERE k.ctid = t.place;
                IF v_cls IS NULL THEN
                    INSERT INTO forebay.share (queue, turn) VALUES (v_queue, v_turn)
                    ON CONFLICT (queue) DO UPDATE SET turn = excluded.turn;
                END IF;
            END IF;
        END IF;
        IF s_lanes <> '{}' THEN
            v_met := v_met + cardinality(s_lanes);
            v_wide := 4;
            UPDATE forebay.lane AS l SET at = g_names[s.gate], rank = s.rank, id = s.id, opens_at = forebay.opens_at((
                SELECT g.tat FROM forebay.gate AS g WHERE g.name = g_names[s.gate]
            ), g_slots[s.gate], s.cost, g_steps[s.gate])
            FROM (
                SELECT s.*, (SELECT o.ctid FROM forebay.lane AS o WHERE o.queue = v_queue AND o.lane = s.lane) AS place
                FROM unnest(s_lanes, s_gates, s_costs, s_ranks, s_ids) AS s (lane, gate, cost, rank, id)
            ) AS s
            WHERE l.ctid = s.place;
            IF q.weight IS NOT NULL THEN
                PERFORM forebay.update_class_turns(v_queue, s_classes);
            END IF;
        END IF;
        IF v_beyond THEN
            -- The places of some lanes are long past: they would be read first again, and give nothing.
            v_met := v_met + 1;
            PERFORM forebay.refresh(v_now, v_queue, ARRAY(SELECT l.lane FROM unnest(c) AS l), true);
        ELSIF t_lanes <> '{}' THEN
            PERFORM forebay.refresh(v_now, v_queue, t_lanes, v_exact);
        END IF;
        IF v_names <> '{}' THEN
            PERFORM forebay.wake(v_now, v_names);
        END IF;
        IF v_again AND p_classes[v_gate] <> ALL (t_classes) THEN
            v_met := v_met + 1;
            UPDATE forebay.lane AS l SET at = NULL, opens_at = NULL WHERE l.queue = v_queue AND l.lane = p_lanes[v_gate];
            IF q.weight IS NOT NULL THEN
                PERFORM forebay.update_class_turns(v_queue, ARRAY[p_classes[v_gate]]);
            END IF;
        END IF;
        EXIT WHEN v_full;
    END LOOP;
    IF v_turn IS NOT NULL AND v_cls IS NULL THEN
        DELETE FROM forebay.class AS k WHERE k.ctid = ANY (ARRAY(
            SELECT i.ctid FROM forebay.class AS i WHERE i.queue = v_queue AND i.idle AND i.turn <= v_turn LIMIT 100
        ));
    END IF;
END
$$;

-- Claim the next job of a plain queue, if that is all there is to do: the version is current, nothing needs maintenance, and
-- the next job is a run by itself. Else the row has no pack: the long way finds out. One statement, since for a single job
-- starting statements costs most of the time; the settings are the caller's.
CREATE FUNCTION forebay.claim_one(
    v_now bigint, v_until bigint, v_holder integer, v_queue text, v_version integer, v_lead bigint, v_floor bigint
) RETURNS forebay.claimed
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_claimed forebay.claimed;
BEGIN
    WITH taken AS (
        DELETE FROM forebay.run AS r WHERE r.n = 1 AND r.line IS NULL AND r.ctid = CASE WHEN (
            SELECT coalesce(q.version, 0) = v_version AND coalesce(q.paused_until, 0) <= v_now AND coalesce(q.whole, '[]') = '[]'
                AND NOT coalesce(q.laned, false) AND (SELECT true FROM forebay.lane AS l WHERE l.queue = v_queue LIMIT 1) IS NULL
                AND (SELECT true FROM forebay.run AS r WHERE r.expires_at IS NOT NULL AND r.expires_at <= v_now LIMIT 1) IS NULL
                AND (SELECT true FROM forebay.inbox LIMIT 1) IS NULL AND (
                    SELECT true FROM forebay.run AS r WHERE r.state = 3 AND r.queue = v_queue AND r.due_at <= v_now LIMIT 1
                ) IS NULL
            FROM (SELECT) AS one LEFT JOIN forebay.queue AS q ON q.name = v_queue
        ) THEN coalesce((
            SELECT r.ctid FROM forebay.run AS r
            WHERE r.state = 1 AND r.queue = v_queue AND r.lane = '' AND r.rank >= coalesce(v_lead, -9223372036854775808)
                AND r.rank < CASE WHEN v_floor IS NULL THEN 9223372036854775807 ELSE 0 END
                AND (r.expires_at IS NULL OR r.expires_at > v_now)
            ORDER BY r.rank, r.last_id LIMIT 1 FOR UPDATE SKIP LOCKED
        ), (
            SELECT r.ctid FROM forebay.run AS r
            WHERE r.state = 1 AND r.queue = v_queue AND r.lane = '' AND r.rank >= v_floor
                AND (r.expires_at IS NULL OR r.expires_at > v_now)
            ORDER BY r.rank, r.last_id LIMIT 1 FOR UPDATE SKIP LOCKED
        )) END
        RETURNING r.rank, r.last_id, r.due_at, r.cancel_requested, r.facts, r.errors, r.bodies, forebay.member_of(r) AS member,
            '[' || r.max_attempts || ',' || r.size || ',' || coalesce(r.expires_at::text, 'null')
                || CASE WHEN r.cancel_requested THEN ',true]' ELSE ',false]' END AS extent,
            forebay.ledger_range(
                'claimed', r.last_id, 1, r.queue, r.kind, r.delivery + 1, r.attempt + 1, 0, r.enqueued_at, r.due_at,
                greatest(v_now, r.due_at), v_until,
                forebay.kinds(r.facts, r.size - 1, 1)
            ) AS job_range
    ), pack AS (
        INSERT INTO forebay.pack (lease_until, claimed_at, n, holder, by_heartbeat, plain, queue, ids, cancel_requested, members)
        SELECT v_until, v_now, 1, v_holder,
            coalesce((SELECT h.until FROM forebay.holder AS h WHERE h.id = v_holder) <= v_until, false), true, v_queue,
            int8range(t.last_id, t.last_id, '[]'), CASE WHEN t.cancel_requested THEN B'1' END, ARRAY[t.member]
        FROM taken AS t
        RETURNING id, by_heartbeat
    ), recorded AS (
        INSERT INTO forebay.ledger (at, verb, owner, ranges)
        SELECT greatest(v_now, t.due_at), 'claim', (SELECT h.owner FROM forebay.holder AS h WHERE h.id = v_holder),
            ('[' || t.job_range || ']')::json
        FROM taken AS t, forebay.ledger_rule AS l WHERE l.recording
    )
    SELECT 0, v_now, 1, p.id, 1, p.by_heartbeat, CASE WHEN t.rank < 0 THEN t.rank END, CASE WHEN t.rank >= 0 THEN t.rank END,
        t.job_range, t.extent, CASE WHEN t.facts IS NOT NULL OR t.errors IS NOT NULL THEN
            '[1,' || coalesce(t.facts::text, 'null') || ',' || coalesce(t.errors, '[]') || ']' END, t.bodies::text, NULL
    INTO v_claimed FROM taken AS t, pack AS p;
    RETURN v_claimed;
END
$$;

-- Take the next jobs of a queue without lanes, as many as its gates let through. `v_rows`: how many runs the caller expects to
-- need, so that no more are locked than are taken. `v_lead`, `v_floor`: where to begin among jobs that lead (ranks below zero)
-- and among the others; NULL: at the start. An old snapshot keeps dead entries in the index, and a scan of all of them would
-- take longer and longer. The settings are the caller's.
CREATE FUNCTION forebay.take_plain(
    v_now bigint, v_queue text, v_gated boolean, v_need integer, v_rows integer, v_lead bigint, v_floor bigint
) RETURNS forebay.member[]
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_got integer;
    v_whole integer;
    v_fits bigint;
    v_spent bigint := 0;
    v_from bigint := coalesce(v_lead, -9223372036854775808);
    v_to bigint := CASE WHEN v_floor IS NULL THEN 9223372036854775807 ELSE 0 END;
    v_runs tid[];
    v_sizes integer[];
    v_costs integer[];
    v_members forebay.member[];
    g_names text[]; g_stamped integer[]; g_slots integer[]; g_steps bigint[]; g_rooms bigint[];
BEGIN
    IF v_gated THEN
        SELECT array_agg(g.name), array_agg(g.stamped), array_agg(g.slots), array_agg(g.step), array_agg(g.room)
        INTO g_names, g_stamped, g_slots, g_steps, g_rooms FROM forebay.whole_gates(v_now, v_queue) AS g;
    END IF;
    v_rows := least(v_rows, v_need);
    WHILE v_need > 0 LOOP
        SELECT array_agg(c.ctid), array_agg(c.n), array_agg(c.cost) INTO v_runs, v_sizes, v_costs
        FROM (
            SELECT r.ctid, r.n, r.cost FROM forebay.run AS r
            WHERE r.state = 1 AND r.queue = v_queue AND r.lane = '' AND r.rank >= v_from AND r.rank < v_to
                AND (r.expires_at IS NULL OR r.expires_at > v_now)
            ORDER BY r.rank, r.last_id LIMIT v_rows FOR UPDATE SKIP LOCKED
        ) AS c;
        v_got := coalesce(cardinality(v_runs), 0);
        v_whole := 0;
        WHILE v_whole < v_got LOOP
            v_fits := v_need;
            IF v_gated THEN
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
            WITH taken AS (
                DELETE FROM forebay.run AS r WHERE r.ctid = ANY (v_runs[:v_whole])
                RETURNING r.rank, r.last_id, r.line, forebay.member_of(r) AS member
            ), line AS (
                INSERT INTO forebay.running_line (line, id) SELECT t.line, t.last_id FROM taken AS t WHERE t.line IS NOT NULL
            )
            SELECT v_members || array_agg(t.member ORDER BY t.rank, t.last_id) INTO v_members FROM taken AS t;
        END IF;
        IF v_whole < v_got THEN
            -- Some of the next run, or nothing: the queue has come to what it may give.
            IF v_fits > 0 THEN
                v_members := v_members || forebay.split(v_runs[v_whole + 1], v_fits::integer);
            END IF;
            v_need := 0;
        END IF;
        IF v_got < v_rows THEN
            EXIT WHEN v_to > 0;
            v_from := v_floor;
            v_to := 9223372036854775807;
        END IF;
        v_rows := least(v_need, v_rows * 4);
    END LOOP;
    IF v_spent > 0 THEN
        PERFORM forebay.use_gates(v_now, g_names, g_stamped, g_steps, array_fill(v_spent, ARRAY[cardinality(g_names)]));
    END IF;
    RETURN v_members;
END
$$;

-- Hand out. `flag` of the only row may say why nothing was handed out: 1, maintenance comes first; 2, a spec has changed; 3, a
-- queue has lanes of an older spec, so that its lock is needed exclusively.
-- `serial`: by want, whether the lock of its queue is held exclusively. `rows`, `leads`, `floors`: as in `take_plain`. What is
-- taken for a want becomes a pack.
CREATE FUNCTION forebay.claim(
    at bigint, maintained boolean, holder_id integer, lease_for bigint, exclusive_keys integer[], shared_keys integer[], serial boolean[],
    names text[], versions integer[], classes text[], counts integer[], rows integer[], leads bigint[], floors bigint[]
) RETURNS SETOF forebay.claimed
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off
SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_locked boolean := forebay.lock_queues(exclusive_keys, shared_keys);
    v_now bigint := coalesce(at, forebay.clock());
    v_until bigint := v_now + lease_for;
    v_one forebay.claimed;
    v_queues record;
    v_members forebay.member[];
    v_places text[];
    -- All that was taken, the wants, and the places of the jobs of each; `t_firsts`: the numbers of its first
    -- member and of that of the next.
    t_members forebay.member[];
    t_wants integer[] := '{}';
    t_firsts integer[] := '{1}';
    t_places text[] := '{}';
BEGIN
    IF counts = '{1}' AND NOT maintained AND NOT serial[1] AND classes[1] IS NULL THEN
        v_one := forebay.claim_one(v_now, v_until, holder_id, names[1], versions[1], leads[1], floors[1]);
        IF v_one.pack IS NOT NULL THEN
            RETURN NEXT v_one;
            RETURN;
        END IF;
    END IF;
    v_one.stamp := v_now;
    IF NOT maintained AND forebay.needs_maintenance(v_now) THEN
        v_one.flag := 1;
        RETURN NEXT v_one;
        RETURN;
    END IF;
    SELECT bool_or(u.changed) AS changed, bool_or(u.has_lanes AND NOT u.serial) AS unlocked, array_agg(u.paused) AS paused,
        array_agg(u.gated) AS gated, array_agg(u.laned OR u.has_lanes) AS laned, array_agg(u.due) AS due INTO v_queues
    FROM (
        SELECT u.serial, coalesce(q.version, 0) <> u.version AS changed, coalesce(q.paused_until > v_now, false) AS paused,
            coalesce(q.whole <> '[]', false) AS gated, coalesce(q.laned, false) AS laned,
            (SELECT true FROM forebay.lane AS l WHERE l.queue = u.name LIMIT 1) IS NOT NULL AS has_lanes,
            (
                SELECT true FROM forebay.run AS r WHERE r.state = 3 AND r.queue = u.name AND r.due_at <= v_now LIMIT 1
            ) IS NOT NULL AS due
        FROM unnest(names, versions, serial) WITH ORDINALITY AS u (name, version, serial, number)
        LEFT JOIN LATERAL (SELECT * FROM forebay.queue AS q WHERE q.name = u.name OFFSET 0) AS q ON true
        ORDER BY u.number
    ) AS u;
    IF v_queues.changed OR v_queues.unlocked THEN
        v_one.flag := CASE WHEN v_queues.changed THEN 2 ELSE 3 END;
        RETURN NEXT v_one;
        RETURN;
    END IF;
    FOR i IN 1 .. cardinality(names) LOOP
        CONTINUE WHEN counts[i] = 0 OR v_queues.paused[i];
        IF v_queues.due[i] THEN
            PERFORM forebay.promote_due(v_now, names[i], 1000);
        END IF;
        v_places := NULL;
        IF v_queues.laned[i] THEN
            SELECT t.members, t.places INTO v_members, v_places FROM forebay.take(v_now, names[i], classes[i], counts[i]) AS t;
        ELSE
            CONTINUE WHEN classes[i] <> '';
            v_members := forebay.take_plain(v_now, names[i], v_queues.gated[i], counts[i], rows[i], leads[i], floors[i]);
        END IF;
        CONTINUE WHEN v_members IS NULL;
        t_wants := t_wants || i;
        t_places := t_places || translate(array_to_string(v_places, ','), '{}', '[]');
        t_members := t_members || v_members;
        t_firsts := t_firsts || cardinality(t_members) + 1;
    END LOOP;
    IF t_members IS NULL THEN
        RETURN;
    END IF;
    -- A heartbeat that reaches beyond the new leases must not make them last longer than they say. What fell due and was made
    -- ready by others after this call began is taken no earlier than it was due.
    RETURN QUERY
    WITH taken AS MATERIALIZED (
        SELECT u.want, u.places, u.members, names[u.want] AS queue, nextval('forebay.pack_id_seq') AS pack, h.owner,
            coalesce(h.until <= v_until, false) AS by_heartbeat, m.*
        FROM (
            SELECT t_wants[i] AS want, t_places[i] AS places,
                CASE WHEN cardinality(t_wants) = 1 THEN t_members ELSE t_members[t_firsts[i]:t_firsts[i + 1] - 1] END AS members
            FROM generate_series(1, cardinality(t_wants)) AS i
        ) AS u
        LEFT JOIN forebay.holder AS h ON h.id = holder_id
        CROSS JOIN LATERAL (
            SELECT sum(m.n)::integer AS n, min(m.last_id - m.n + 1) AS first, max(m.last_id) AS last,
                bool_and(m.lane = '' AND m.line IS NULL) AS plain, min(m.rank) FILTER (WHERE m.rank < 0) AS lead,
                min(m.rank) FILTER (WHERE m.rank >= 0) AS floor, max(m.due_at) AS last_due, string_agg(forebay.ledger_range(
                    'claimed', m.last_id - m.n + 1, m.n, names[u.want], m.kind, m.delivery, m.attempt, 0, m.enqueued_at, m.due_at,
                    greatest(v_now, m.due_at), v_until,
                    forebay.kinds(m.facts, m.size - m.n, m.n)
                ), ',') AS ranges,
                string_agg('[' || m.max_attempts || ',' || m.size || ',' || coalesce(m.expires_at::text, 'null')
                    || CASE WHEN m.cancel_requested THEN ',true]' ELSE ',false]' END, ',') AS extents,
                string_agg('[' || m.ordinality || ',' || coalesce(m.facts::text, 'null') || ',' || coalesce(m.errors, '[]') || ']', ',')
                    FILTER (WHERE m.facts IS NOT NULL OR m.errors IS NOT NULL) AS traits,
                string_agg(m.bodies::text, ',') AS bodies,
                string_agg(repeat(CASE WHEN m.cancel_requested THEN '1' ELSE '0' END, m.n), '') AS cancel_requested
            FROM unnest(u.members) WITH ORDINALITY AS m
        ) AS m
    ), pack AS (
        INSERT INTO forebay.pack (id, lease_until, claimed_at, n, holder, by_heartbeat, plain, queue, ids, cancel_requested, members)
        OVERRIDING SYSTEM VALUE
        SELECT t.pack, v_until, v_now, t.n, holder_id, t.by_heartbeat, t.plain, t.queue, int8range(t.first, t.last, '[]'),
            CASE WHEN strpos(t.cancel_requested, '1') > 0 THEN t.cancel_requested::bit varying END, t.members
        FROM taken AS t
    ), recorded AS (
        INSERT INTO forebay.ledger (at, verb, owner, ranges)
        SELECT greatest(v_now, max(t.last_due)), 'claim', min(t.owner), ('[' || string_agg(t.ranges, ',') || ']')::json
        FROM taken AS t, forebay.ledger_rule AS l WHERE l.recording
        HAVING count(*) > 0
    )
    SELECT 0, v_now, t.want, t.pack, t.n, t.by_heartbeat, t.lead, t.floor, t.ranges, t.extents, t.traits, t.bodies,
        t.places
    FROM taken AS t;
END
$$;
