-- Retained logs: offsets of groups of readers.

-- Commit an offset of a group, in the caller's transaction. `flaw`: why it was refused: log (there is none), partition or
-- offset (`known` is the largest), epoch (another member owns the partition).
CREATE FUNCTION forebay.commit_offset(
    in_log text, in_reader text, in_number bigint, in_entry bigint, in_rewind boolean DEFAULT false,
    in_epoch bigint DEFAULT NULL, in_at bigint DEFAULT NULL, OUT known bigint, OUT flaw text
)
LANGUAGE plpgsql
AS $$
DECLARE
    here integer;
    following bigint;
    owner text;
    current bigint;
BEGIN
    SELECT p.place, p.next INTO here, following
    FROM forebay.log_partition AS p WHERE p.log = in_log AND p.number = in_number;
    IF NOT FOUND THEN
        SELECT max(p.number) INTO known FROM forebay.log_partition AS p WHERE p.log = in_log;
        flaw := CASE WHEN known IS NULL THEN 'log' ELSE 'partition' END;
        RETURN;
    END IF;
    IF in_entry IS NULL OR in_entry < -1 OR in_entry >= following THEN
        known := following - 1;
        flaw := 'offset';
        RETURN;
    END IF;
    in_at := coalesce(in_at, forebay.clock());
    SELECT r.entry, r.member, r.epoch INTO known, owner, current
    FROM forebay.log_reader AS r WHERE r.place = here AND r.reader = in_reader FOR UPDATE;
    IF NOT FOUND AND in_epoch IS NULL THEN
        INSERT INTO forebay.log_group (log, reader, seen_at) VALUES (in_log, in_reader, in_at) ON CONFLICT DO NOTHING;
        INSERT INTO forebay.log_reader (place, reader, entry) VALUES (here, in_reader, -1) ON CONFLICT DO NOTHING;
        SELECT r.entry INTO known
        FROM forebay.log_reader AS r WHERE r.place = here AND r.reader = in_reader FOR UPDATE;
    END IF;
    IF in_epoch IS NOT NULL AND (owner IS NULL OR current <> in_epoch) THEN
        flaw := 'epoch';
        RETURN;
    END IF;
    known := CASE WHEN in_rewind THEN in_entry ELSE greatest(known, in_entry) END;
    UPDATE forebay.log_reader AS r SET entry = known, seen_at = greatest(r.seen_at, in_at)
    WHERE r.place = here AND r.reader = in_reader;
END $$;
