-- The ledger: offsets, reads and trimming of records (core/ledger.py).

-- Give offsets to records of transactions that have ended. Returns the next free offset.
CREATE FUNCTION forebay.number_ledger() RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_mark forebay.ledger_mark;
    v_upto xid8;
    v_moved boolean;
    v_count bigint;
    v_bytes bigint;
BEGIN
    SELECT * INTO v_mark FROM forebay.ledger_mark FOR UPDATE;
    v_upto := pg_snapshot_xmin(pg_current_snapshot());
    -- A dump was restored: this server numbers its transactions from the start, and all of the dump have ended.
    v_moved := v_upto < v_mark.upto;
    WITH page AS (
        INSERT INTO forebay.ledger_page
        SELECT v_mark.next + min(r.place), count(*), min(r.seq), max(r.seq) + 1, v_mark.upto,
            CASE WHEN v_moved THEN '18446744073709551615' ELSE v_upto END
        FROM (
            SELECT l.seq, row_number() OVER (ORDER BY l.seq) - 1 AS place FROM forebay.ledger AS l
            WHERE l.xid >= v_mark.upto AND (v_moved OR l.xid < v_upto) AND l.seq > v_mark.after_seq
        ) AS r
        GROUP BY r.place / 1000
        RETURNING n, seq_from, seq_upto, xid_from, xid_upto
    )
    SELECT sum(p.n), sum((
        SELECT sum(forebay.ledger_size(l)) FROM forebay.ledger AS l
        WHERE l.seq >= p.seq_from AND l.seq < p.seq_upto AND l.xid >= p.xid_from AND l.xid < p.xid_upto
    )) INTO v_count, v_bytes FROM page AS p;
    IF v_moved THEN
        UPDATE forebay.ledger_mark
        SET after_seq = coalesce((SELECT max(p.seq_upto) - 1 FROM forebay.ledger_page AS p), after_seq);
    END IF;
    IF v_moved OR v_count > 0 THEN
        UPDATE forebay.ledger_mark AS m
        SET next = m.next + coalesce(v_count, 0), bytes = m.bytes + coalesce(v_bytes, 0),
            upto = CASE WHEN v_moved THEN '0'::xid8 ELSE v_upto END;
    END IF;
    RETURN v_mark.next + coalesce(v_count, 0);
END
$$;

CREATE FUNCTION forebay.ledger_size(record forebay.ledger) RETURNS bigint LANGUAGE sql STABLE
AS $$ SELECT 64 + coalesce(pg_column_size(record.spans), 0)::bigint $$;

-- Records after an offset, without a gap.
CREATE FUNCTION forebay.read_ledger(v_after bigint, most integer)
RETURNS TABLE (entry bigint, at bigint, verb text, owner text, name text, tick bigint, spans json)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_page forebay.ledger_page;
    v_left bigint := most;
BEGIN
    FOR v_page IN
        (SELECT * FROM forebay.ledger_page AS p WHERE p.first <= v_after + 1 ORDER BY p.first DESC LIMIT 1)
        UNION ALL
        (SELECT * FROM forebay.ledger_page AS p WHERE p.first > v_after + 1 ORDER BY p.first)
    LOOP
        CONTINUE WHEN v_page.first + v_page.n <= v_after + 1;
        EXIT WHEN v_left <= 0;
        RETURN QUERY
        SELECT v_page.first + l.place, l.at, l.verb, l.owner, l.name, l.tick, l.spans
        FROM (
            SELECT l.*, row_number() OVER (ORDER BY l.seq) - 1 AS place FROM forebay.ledger AS l
            WHERE l.seq >= v_page.seq_from AND l.seq < v_page.seq_upto
                AND l.xid >= v_page.xid_from AND l.xid < v_page.xid_upto
        ) AS l
        WHERE v_page.first + l.place > v_after ORDER BY 1 LIMIT v_left;
        v_left := v_left - (v_page.n - greatest(0, v_after + 1 - v_page.first));
    END LOOP;
END
$$;

-- Remove up to `most` of the oldest records, as far as the rule does not keep them; returns how many.
CREATE FUNCTION forebay.trim_ledger(v_now bigint, most integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_page forebay.ledger_page;
    v_rule forebay.ledger_rule;
    v_bytes bigint;
    v_left integer := most;
    v_gone integer;
    v_freed bigint;
    v_last bigint;
BEGIN
    SELECT m.bytes INTO v_bytes FROM forebay.ledger_mark AS m FOR UPDATE;
    SELECT * INTO v_rule FROM forebay.ledger_rule;
    WHILE v_left > 0 LOOP
        SELECT * INTO v_page FROM forebay.ledger_page AS p ORDER BY p.first LIMIT 1;
        EXIT WHEN NOT FOUND;
        -- The records of the page before the first that is kept.
        SELECT count(*), sum(t.size), max(t.seq) INTO v_gone, v_freed, v_last
        FROM (
            SELECT l.seq, l.size, bool_and(l.at < v_now - v_rule.keep OR v_bytes - l.before > v_rule.keep_bytes)
                OVER (ORDER BY l.seq) AS goes
            FROM (
                SELECT l.seq, l.at, forebay.ledger_size(l) AS size,
                    sum(forebay.ledger_size(l)) OVER (ORDER BY l.seq) - forebay.ledger_size(l) AS before
                FROM forebay.ledger AS l
                WHERE l.seq >= v_page.seq_from AND l.seq < v_page.seq_upto
                    AND l.xid >= v_page.xid_from AND l.xid < v_page.xid_upto
                ORDER BY l.seq LIMIT v_left
            ) AS l
        ) AS t
        WHERE t.goes;
        EXIT WHEN v_gone = 0;
        DELETE FROM forebay.ledger AS l
        WHERE l.seq >= v_page.seq_from AND l.seq <= v_last AND l.xid >= v_page.xid_from AND l.xid < v_page.xid_upto;
        IF v_gone = v_page.n THEN
            DELETE FROM forebay.ledger_page AS p WHERE p.first = v_page.first;
        ELSE
            UPDATE forebay.ledger_page AS p SET first = p.first + v_gone, n = p.n - v_gone, seq_from = v_last + 1
            WHERE p.first = v_page.first;
        END IF;
        v_bytes := v_bytes - v_freed;
        v_left := v_left - v_gone;
        EXIT WHEN v_gone < v_page.n;
    END LOOP;
    IF v_left < most THEN
        UPDATE forebay.ledger_mark SET bytes = v_bytes;
    END IF;
    RETURN most - v_left;
END
$$;
