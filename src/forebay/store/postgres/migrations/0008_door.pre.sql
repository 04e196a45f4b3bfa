-- Uniqueness by state. A key whose `until` is beyond all instants (7258118400000000) is taken while its job is in one of
-- the states that its queue names; bits in the order waiting, ready, running, done, dead, cancelled.
ALTER TABLE forebay.queue ADD COLUMN unique_states smallint;
CREATE INDEX key_by_state ON forebay.key (queue, key) WHERE until >= 7258118400000000;

-- Whether a job is in one of these states. VOLATILE: it sees what was committed a moment ago, which the statement that
-- asks may not.
CREATE FUNCTION forebay.in_states(v_id bigint, v_states integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_state smallint;
BEGIN
    SELECT CASE r.state WHEN 3 THEN 0 ELSE r.state END INTO v_state
    FROM forebay.find(ARRAY[v_id]) AS f, LATERAL (
        SELECT * FROM forebay.run AS r WHERE r.single = f.single AND r.last_id = f.last_id OFFSET 0
    ) AS r;
    IF NOT FOUND THEN
        SELECT e.state INTO v_state FROM forebay.ended AS e WHERE e.id = v_id;
    END IF;
    IF NOT FOUND THEN
        SELECT 0 INTO v_state FROM forebay.inbox AS i WHERE i.id = v_id;
    END IF;
    RETURN coalesce((v_states >> v_state) & 1 = 1, false);
END
$$;

-- Before a key is taken by state: whoever had it loses it, unless his job is in one of the states.
-- With its owner's rights: who may only enqueue need not be allowed to look at jobs, or to take keys away.
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
