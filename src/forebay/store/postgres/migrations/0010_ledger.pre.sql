-- The ledger: offsets, reads and trimming of records (core/ledger.py).

-- Give offsets to records. Returns the next free offset.
--
-- A record may have one when no record can come to precede it. Its predecessors were committed before its `seq` was taken, so
-- theirs are smaller; but a transaction may have a smaller `xid` than those whose changes it sees. So records have offsets
-- that are of ended transactions (below `upto`) and below every `seq` that is visible of a later transaction (below `seq_upto`).
-- Both only grow; a record below `upto` alone gets its offset by a later call.
CREATE FUNCTION forebay.number_ledger() RETURNS bigint
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_mark forebay.ledger_mark;
    v_upto xid8;
    v_moved boolean;
    v_count bigint;
    v_bytes bigint;
    v_last bigint;
    v_later bigint;
BEGIN
    SELECT * INTO v_mark FROM forebay.ledger_mark FOR UPDATE;
    v_upto := pg_snapshot_xmin(pg_current_snapshot());
    IF v_upto = v_mark.upto THEN
        RETURN v_mark.next;
    END IF;
    -- A dump was restored: this server numbers its transactions from the start, and all of the dump have ended.
    v_moved := v_upto < v_mark.upto;
    WITH later AS (
        -- Not min(seq), which would read the ledger from its start.
        SELECT min(l.seq + 0) AS seq FROM forebay.ledger AS l
        WHERE NOT v_moved AND l.xid >= v_upto AND l.xid < pg_snapshot_xmax(pg_current_snapshot()) AND l.seq > v_mark.after_seq
    ), page AS (
        INSERT INTO forebay.ledger_page AS g (first, n, seq_from, seq_upto, seq_floor, xid_from, xid_upto)
        SELECT v_mark.next + min(r.place), count(*), min(r.seq), max(r.seq) + 1, v_mark.seq_upto, v_mark.upto,
            CASE WHEN v_moved THEN '18446744073709551615' ELSE v_upto END
        FROM (
            SELECT l.seq, row_number() OVER (ORDER BY l.seq) - 1 AS place
            FROM (
                SELECT n.seq FROM forebay.ledger AS n
                WHERE n.xid >= v_mark.upto AND (v_moved OR n.xid < v_upto) AND n.seq > v_mark.after_seq
                UNION ALL
                SELECT o.seq FROM forebay.ledger AS o
                -- Not by the index of xid, which would read all that has offsets.
                WHERE o.seq >= v_mark.seq_upto AND coalesce(o.xid < v_mark.upto, false)
                    AND (NOT v_moved OR o.xid >= pg_snapshot_xmax(pg_current_snapshot()))
            ) AS l
            CROSS JOIN later WHERE later.seq IS NULL OR l.seq < greatest(later.seq, v_mark.seq_upto)
        ) AS r
        GROUP BY r.place / 1000
        RETURNING g AS of
    )
    SELECT sum((p.of).n), sum((SELECT sum(forebay.ledger_size(l)) FROM forebay.page_records(p.of) AS l)),
        max((p.of).seq_upto), (SELECT later.seq FROM later)
    INTO v_count, v_bytes, v_last, v_later FROM page AS p;
    IF v_moved OR v_count > 0 OR v_later IS NOT NULL THEN
        UPDATE forebay.ledger_mark AS m
        SET next = m.next + coalesce(v_count, 0), bytes = m.bytes + coalesce(v_bytes, 0),
            upto = CASE WHEN v_moved THEN '0'::xid8 ELSE v_upto END, seq_upto = greatest(m.seq_upto, v_later, v_last),
            after_seq = CASE WHEN v_moved THEN greatest(m.after_seq, v_last - 1) ELSE m.after_seq END;
    END IF;
    RETURN v_mark.next + coalesce(v_count, 0);
END
$$;

-- The records of a page.
CREATE FUNCTION forebay.page_records(page forebay.ledger_page) RETURNS SETOF forebay.ledger LANGUAGE sql STABLE
AS $$
    SELECT l.* FROM forebay.ledger AS l
    WHERE l.seq >= page.seq_from AND l.seq < page.seq_upto AND l.xid < page.xid_upto
        AND (l.xid >= page.xid_from OR l.seq >= page.seq_floor)
$$;

CREATE FUNCTION forebay.ledger_size(record forebay.ledger) RETURNS bigint LANGUAGE sql STABLE
AS $$ SELECT 64 + coalesce(pg_column_size(record.ranges), 0)::bigint $$;

-- Records after an offset, without a gap.
CREATE FUNCTION forebay.read_ledger(v_after bigint, max_records integer)
RETURNS TABLE (entry bigint, at bigint, verb text, owner text, name text, tick bigint, ranges json)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_page forebay.ledger_page;
    v_left bigint := max_records;
BEGIN
    FOR v_page IN
        (SELECT * FROM forebay.ledger_page AS p WHERE p.first <= v_after + 1 ORDER BY p.first DESC LIMIT 1)
        UNION ALL
        (SELECT * FROM forebay.ledger_page AS p WHERE p.first > v_after + 1 ORDER BY p.first)
    LOOP
        CONTINUE WHEN v_page.first + v_page.n <= v_after + 1;
        EXIT WHEN v_left <= 0;
        RETURN QUERY
        SELECT v_page.first + l.place, l.at, l.verb, l.owner, l.name, l.tick, l.ranges
        FROM (
            SELECT l.*, row_number() OVER (ORDER BY l.seq) - 1 AS place FROM forebay.page_records(v_page) AS l
        ) AS l
        WHERE v_page.first + l.place > v_after ORDER BY 1 LIMIT v_left;
        v_left := v_left - (v_page.n - greatest(0, v_after + 1 - v_page.first));
    END LOOP;
END
$$;

-- Remove up to `max_records` of the oldest records, as far as the rule does not keep them; returns how many.
CREATE FUNCTION forebay.trim_ledger(v_now bigint, max_records integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_page forebay.ledger_page;
    v_rule forebay.ledger_rule;
    v_bytes bigint;
    v_left integer := max_records;
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
                FROM forebay.page_records(v_page) AS l ORDER BY l.seq LIMIT v_left
            ) AS l
        ) AS t
        WHERE t.goes;
        EXIT WHEN v_gone = 0;
        DELETE FROM forebay.ledger AS l
        USING forebay.page_records(v_page) AS r WHERE l.seq = r.seq AND r.seq <= v_last;
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
    IF v_left < max_records THEN
        UPDATE forebay.ledger_mark SET bytes = v_bytes;
    END IF;
    RETURN max_records - v_left;
END
$$;
