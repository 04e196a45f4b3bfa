-- Statements about retained logs. A partition's place is its number in the whole store.

-- name: partitions
-- The partitions of a log: place, first offset held, next offset.
SELECT place, first, next FROM log_partition WHERE log = ? ORDER BY number;

-- name: lock_partitions
-- The same, for a turn that appends: there is one writer, so nothing else is to be locked.
SELECT place, first, next FROM log_partition WHERE log = ? ORDER BY number;

-- name: partition
-- One partition.
SELECT place, first, next FROM log_partition WHERE log = ? AND number = ?;

-- name: add_partition
-- A log gets one more partition; never fewer.
INSERT INTO log_partition (log, number) VALUES (?, ?);

-- name: append
-- One entry.
INSERT INTO log_entry (place, entry, at, key, body) VALUES (?, ?, ?, ?, ?);

-- name: appended
-- The offset of the entry to come.
UPDATE log_partition SET next = ?2 WHERE place = ?1;

-- name: entries
-- Entries after an offset.
SELECT entry, at, body, key FROM log_entry WHERE place = ?1 AND entry > ?2 ORDER BY entry LIMIT ?3;

-- name: old_entries
-- Offsets at the front of a partition, and their instants.
SELECT entry, at FROM log_entry WHERE place = ?1 ORDER BY entry LIMIT ?2;

-- name: trim
-- Entries before an offset are gone.
DELETE FROM log_entry WHERE place = ?1 AND entry < ?2;

-- name: trimmed
-- The first offset that is left.
UPDATE log_partition SET first = ?2 WHERE place = ?1;

-- name: reader
-- The last committed offset of a group.
SELECT entry FROM log_reader WHERE place = ?1 AND reader = ?2;

-- name: lock_reader
-- The same, for a turn that commits.
SELECT entry FROM log_reader WHERE place = ?1 AND reader = ?2;

-- name: commit
-- A group has done everything up to an offset.
INSERT OR REPLACE INTO log_reader (place, reader, entry) VALUES (?, ?, ?);
