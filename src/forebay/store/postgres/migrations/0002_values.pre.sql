-- Values: the server's clock, ranks, and parts of what a run keeps as JSON. Same rules as core/rank.py and core/gate.py.

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

-- The kinds of a run's jobs where they differ from the run's; NULL for almost all.
CREATE FUNCTION forebay.kinds(facts json, skip integer, count integer) RETURNS json LANGUAGE sql IMMUTABLE STRICT
AS $$
    SELECT json_agg(CASE WHEN e.value ->> 'kind' IS NOT NULL THEN json_build_object('kind', e.value ->> 'kind') END
        ORDER BY e.place)
    FROM json_array_elements(facts) WITH ORDINALITY AS e (value, place)
    WHERE e.place > skip AND e.place <= skip + count
    HAVING bool_or(e.value ->> 'kind' IS NOT NULL)
$$;

-- Whether so many slots, of which some are held, have room; who costs more than there are goes alone.
CREATE FUNCTION forebay.has_room(held integer, cost integer, slots integer) RETURNS boolean LANGUAGE sql IMMUTABLE
AS $$ SELECT held + least(cost, greatest(slots, 1)) <= slots $$;

-- When a rate lets a job in; NULL: never, it is closed. The same as core's `opens_at`.
CREATE FUNCTION forebay.opens_at(tide bigint, slots integer, cost integer, step bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN slots > 0 THEN tide - (slots - least(cost, slots)) * step END $$;

-- What a job with these stamps takes of one of its gates.
CREATE FUNCTION forebay.cost_at(gates text, name text) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce((
        SELECT (s.value ->> 4)::integer FROM json_array_elements(gates::json) AS s (value) WHERE s.value ->> 0 = name
    ), 1)
$$;

-- What a turn of the job's class is worth at one of its gates; 0: the job goes by rank alone.
CREATE FUNCTION forebay.share_at(gates text, name text) RETURNS integer LANGUAGE sql IMMUTABLE
AS $$
    SELECT coalesce((
        SELECT (s.value ->> 6)::integer FROM json_array_elements(gates::json) AS s (value) WHERE s.value ->> 0 = name
    ), 0)
$$;

-- Until when a run is leased.
CREATE FUNCTION forebay.leased_until(beat boolean, lease_until bigint, holder integer) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN beat THEN greatest(lease_until, (SELECT h.until FROM forebay.holder AS h WHERE h.id = holder))
        ELSE lease_until END
$$;
