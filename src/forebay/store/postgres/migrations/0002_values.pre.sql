-- Values: the server's clock, ranks, slices of JSON lists, gates. The same rules as in core/stamp.py and core/gate.py.

CREATE FUNCTION forebay.clock() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- `count` elements of a JSON array after the first `skip`.
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

-- The rank of a job with this due time; the same as core's `rank_at`.
CREATE FUNCTION forebay.rank_at(base bigint, timed smallint, due_at bigint, v_now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN timed = 0 THEN base WHEN timed = 2 AND due_at > v_now THEN base + due_at - 9007199254740992
        ELSE base + due_at END
$$;

-- The rank of a job that returns to its former position; the same as core's `rank_back`.
CREATE FUNCTION forebay.rank_back(rank bigint, timed smallint) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN timed = 2 AND rank >= 0 THEN rank - 9007199254740992 ELSE rank END $$;

-- The rank of a job that waits again, by its verdict.
CREATE FUNCTION forebay.requeue_rank(
    keep_rank boolean, rank bigint, base bigint, timed smallint, v_now bigint, due_at bigint
) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN keep_rank THEN forebay.rank_back(rank, timed) ELSE forebay.rank_at(base, timed, due_at, v_now) END $$;

-- The kinds of jobs that differ from the kind of their run, as the end of a range.
CREATE FUNCTION forebay.own_kinds(facts json, skip integer, count integer) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT coalesce((
        SELECT ',' || json_agg(CASE WHEN e.value ->> 'kind' IS NOT NULL THEN json_build_object('kind', e.value ->> 'kind') END
            ORDER BY e.place)
        FROM json_array_elements(facts) WITH ORDINALITY AS e (value, place)
        WHERE e.place > skip AND e.place <= skip + count
        HAVING bool_or(e.value ->> 'kind' IS NOT NULL)
    ), '')
$$;

-- The same, empty for most runs: this much the planner puts in place of a call.
CREATE FUNCTION forebay.kinds(facts json, skip integer, count integer) RETURNS text LANGUAGE sql STABLE
AS $$ SELECT CASE WHEN facts::text LIKE '%"kind"%' THEN forebay.own_kinds(facts, skip, count) ELSE '' END $$;

-- The free slots of a gate. The same arithmetic as core's `is_open`: a job fits if `least(cost, greatest(slots, 1))` is not
-- more, and takes its cost.
CREATE FUNCTION forebay.room(slots integer, step bigint, used integer, tat bigint, v_now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN coalesce(step, 0) = 0 THEN slots - coalesce(used, 0)
        ELSE slots - (greatest(coalesce(tat, 0) - v_now, 0) + step - 1) / step END
$$;

-- How many jobs of this cost fit into the room, one after the other; one that costs more than all slots runs alone.
CREATE FUNCTION forebay.fitting(room bigint, slots integer, cost integer) RETURNS bigint LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN least(cost, greatest(slots, 1)) > room THEN 0
        ELSE 1 + (room - least(cost, greatest(slots, 1))) / cost END
$$;

-- When a rate admits a job; NULL: it is closed or not a rate. The same as core's `opens_at`.
CREATE FUNCTION forebay.opens_at(tat bigint, slots integer, cost integer, step bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN slots > 0 AND step > 0 THEN coalesce(tat, 0) - (slots - least(cost, slots)) * step END $$;

-- Whether it is the gate of an `Until`; the same as core's `is_condition`.
CREATE FUNCTION forebay.is_condition(gate text) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT starts_with(gate, 'until/') $$;

-- The end of the lease of a pack.
CREATE FUNCTION forebay.leased_until(by_heartbeat boolean, lease_until bigint, holder integer) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN by_heartbeat THEN greatest(lease_until, (SELECT h.until FROM forebay.holder AS h WHERE h.id = holder))
        ELSE lease_until END
$$;

-- A run as a claim takes it: with one more attempt and delivery.
CREATE FUNCTION forebay.member_of(r forebay.run) RETURNS forebay.member LANGUAGE sql IMMUTABLE
AS $$
    SELECT ROW(
        r.last_id, r.rank, r.due_at, r.enqueued_at, r.rank_base, r.expires_at, r.n, r.size, r.cost, r.delivery + 1,
        r.attempt + 1, r.max_attempts, r.settled_delivery, r.rank_timed, r.blocks, r.cancel_requested, r.lane, r.cls, r.kind,
        r.settled_code, r.line, r.gates, r.errors, r.facts, r.bodies
    )::forebay.member
$$;

-- A range of the ledger as JSON text. Names need no quoting; `tail`: traits.
CREATE FUNCTION forebay.ledger_range(
    change text, first bigint, n integer, queue text, kind text, delivery integer, attempt integer, max_attempts integer,
    enqueued_at bigint, due_at bigint, claimed_at bigint, until bigint, tail text
) RETURNS text LANGUAGE sql STABLE
AS $$
    SELECT '["' || change || '",' || first || ',' || n || ',"' || queue || '","' || kind || '",' || delivery || ',' || attempt
        || ',' || max_attempts || ',' || enqueued_at || ',' || due_at || ',' || claimed_at || ',' || until || tail || ']'
$$;

-- Members of packs with the columns of a run and of their pack. `base`: the position of the first job.
CREATE VIEW forebay.running AS
SELECT p.id AS pack, p.n AS jobs, m.ordinality::integer AS number, m.base::integer AS base, m.last_id, m.rank, m.due_at, m.enqueued_at,
    m.rank_base, m.expires_at, m.n, m.size, m.cost, m.delivery, m.attempt, m.max_attempts, m.settled_delivery, m.rank_timed,
    m.blocks, m.lane, m.cls, m.kind, m.settled_code, m.line, m.gates, m.errors, m.facts, m.bodies, p.queue, p.holder, p.by_heartbeat,
    p.lease_until, greatest(p.claimed_at, m.due_at) AS claimed_at,
    substring(p.settled FROM m.base::integer + 1 FOR m.n) AS settled, substring(p.cancel_requested FROM m.base::integer + 1 FOR m.n) AS cancel_requested
FROM forebay.pack AS p CROSS JOIN LATERAL (
    SELECT m.*, sum(m.n) OVER (ORDER BY m.ordinality ROWS UNBOUNDED PRECEDING) - m.n AS base
    FROM unnest(p.members) WITH ORDINALITY AS m
) AS m;
