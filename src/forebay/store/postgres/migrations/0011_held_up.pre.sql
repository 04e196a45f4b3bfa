-- Lines that a dead head blocks, for people. `fallen`: so many of those in its line are dead.
ALTER TABLE forebay.gate ADD COLUMN fallen integer NOT NULL DEFAULT 0;
UPDATE forebay.gate AS g SET fallen = f.fallen FROM (
    SELECT l.gate, count(*) AS fallen FROM forebay.line AS l
    JOIN forebay.ended AS e ON e.id = l.id WHERE e.state = 4 GROUP BY l.gate
) AS f
WHERE g.name = f.gate;
-- Byte by byte, whatever the database's order of words: the gates of a queue are found by how their names begin.
CREATE INDEX gate_fallen ON forebay.gate (name COLLATE "C") WHERE fallen > 0;
CREATE INDEX gate_named ON forebay.gate (name COLLATE "C");

-- As in 0007, and who died and blocks is counted.
CREATE OR REPLACE FUNCTION forebay.leave_gates(ids bigint[], stamps text[], codes text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    WITH g AS MATERIALIZED (
        SELECT j.id, s.value ->> 0 AS name, coalesce((s.value ->> 4)::integer, 1) AS cost, (s.value ->> 2)::boolean
                AND (j.code IN ('a', 'c') OR (j.code = 'd' AND NOT (s.value ->> 3)::boolean)) AS leaves,
            (s.value ->> 2)::boolean AND j.code = 'd' AND (s.value ->> 3)::boolean AS falls
        FROM unnest(ids, stamps, codes) AS j (id, stamps, code), json_array_elements(j.stamps::json) AS s (value)
        WHERE coalesce((s.value ->> 5)::bigint, 0) = 0
    ), walked AS (
        DELETE FROM forebay.line AS l USING g WHERE g.leaves AND l.gate = g.name AND l.id = g.id RETURNING l.gate
    ), counted AS (
        SELECT g.name, sum(g.cost) AS slots, count(*) FILTER (WHERE g.falls) AS fallen,
            (SELECT count(*) FROM walked AS w WHERE w.gate = g.name) AS walked
        FROM g GROUP BY g.name
    )
    UPDATE forebay.gate AS t
    SET held = t.held - c.slots, standing = t.standing - c.walked, opened = t.opened OR t.parked > 0,
        fallen = t.fallen + c.fallen
    FROM counted AS c WHERE t.name = c.name;
    DELETE FROM forebay.gate AS t
    USING (
        SELECT DISTINCT s.value ->> 0 AS name FROM unnest(stamps) AS j (stamps), json_array_elements(j.stamps::json) AS s (value)
    ) AS g
    WHERE t.name = g.name AND t.held = 0 AND t.parked = 0 AND t.standing = 0 AND t.step = 0;
END
$$;

-- Lines of a queue whose head is dead; of those in which some dead stand, `most` are looked at.
CREATE FUNCTION forebay.blocked_lines(v_queue text, most integer) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = on
AS $$
#variable_conflict use_column
BEGIN
    RETURN (
        SELECT count(*) FROM (
            SELECT g.name FROM forebay.gate AS g
            WHERE g.fallen > 0 AND g.name COLLATE "C" >= 'order/' || v_queue || '/'
                AND g.name COLLATE "C" < 'order/' || v_queue || '0'
            ORDER BY g.name COLLATE "C" LIMIT most
        ) AS g
        WHERE (
            SELECT e.state FROM forebay.ended AS e
            WHERE e.id = (SELECT min(l.id) FROM forebay.line AS l WHERE l.gate = g.name)
        ) = 4
    );
END
$$;
