-- Statements about retained logs. A partition's place is its number in the whole store.

-- name: partitions
-- The partitions of a log: place, first offset held, next offset.
SELECT place, first, next FROM forebay.log_partition WHERE log = %s ORDER BY number;

-- name: lock_partitions
-- The same, for a turn that appends: offsets are given in the order of commits, without gaps.
SELECT place, first, next FROM forebay.log_partition WHERE log = %s ORDER BY number FOR UPDATE;

-- name: partition
-- One partition.
SELECT place, first, next FROM forebay.log_partition WHERE log = %s AND number = %s::bigint;

-- name: add_partition
-- A log gets one more partition; never fewer.
INSERT INTO forebay.log_partition (log, number) VALUES (%s, %s);

-- name: append
-- One entry.
INSERT INTO forebay.log_entry (place, entry, at, key, body) VALUES (%s, %s, %s, %s, %s);

-- name: appended
-- The offset of the entry to come.
UPDATE forebay.log_partition AS p SET next = v.next
FROM (SELECT %s::integer AS place, %s::bigint AS next) AS v WHERE p.place = v.place;

-- name: entries
-- Entries after an offset.
SELECT entry, at, body, key FROM forebay.log_entry WHERE place = %s AND entry > %s ORDER BY entry LIMIT %s;

-- name: old_entries
-- Offsets at the front of a partition, and their instants.
SELECT entry, at FROM forebay.log_entry WHERE place = %s ORDER BY entry LIMIT %s;

-- name: trim
-- Entries before an offset are gone.
DELETE FROM forebay.log_entry WHERE place = %s AND entry < %s;

-- name: trimmed
-- The first offset that is left.
UPDATE forebay.log_partition AS p SET first = v.first
FROM (SELECT %s::integer AS place, %s::bigint AS first) AS v WHERE p.place = v.place;

-- name: reader
-- The last committed offset of a group.
SELECT entry FROM forebay.log_reader WHERE place = %s AND reader = %s;

-- name: lock_reader
-- The same, for a turn that commits.
SELECT entry FROM forebay.log_reader WHERE place = %s AND reader = %s FOR UPDATE;

-- name: commit
-- A group has done everything up to an offset.
INSERT INTO forebay.log_reader (place, reader, entry) VALUES (%s, %s, %s)
ON CONFLICT (place, reader) DO UPDATE SET entry = excluded.entry;
