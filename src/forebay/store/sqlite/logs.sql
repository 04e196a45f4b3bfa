-- Statements about retained logs. A partition's place is its number in the whole store.

-- name: partitions
-- The partitions of a log: place, first offset held, next offset, the instant of the newest entry.
SELECT place, first, next, last_at FROM log_partition WHERE log = ? ORDER BY number;

-- name: lock_partitions
-- The same, for a turn that appends: there is one writer, so nothing else is to be locked.
SELECT place, first, next, last_at FROM log_partition WHERE log = ? ORDER BY number;

-- name: partition
-- One partition.
SELECT place, first, next, last_at FROM log_partition WHERE log = ? AND number = ?;

-- name: add_partition
-- A log gets one more partition; never fewer.
INSERT INTO log_partition (log, number) VALUES (?, ?);

-- name: log_spec
-- What a log was configured with.
SELECT spec FROM queue WHERE name = ?;

-- name: append
-- One entry.
INSERT INTO log_entry (place, entry, at, key, body) VALUES (?, ?, ?, ?, ?);

-- name: appended
-- The offset of the entry to come, and the instant of the one before it.
UPDATE log_partition SET next = ?2, last_at = ?3 WHERE place = ?1;

-- name: entries
-- Entries after an offset.
SELECT entry, at, body, key FROM log_entry WHERE place = ?1 AND entry > ?2 ORDER BY entry LIMIT ?3;

-- name: entry_before
-- The last offset that was appended before an instant, or the one before the first that is held: offsets are dense and
-- instants never fall, so a search by halves finds it without an index.
WITH RECURSIVE half (low, high) AS (
    SELECT first, next FROM log_partition WHERE place = ?1
    UNION ALL
    SELECT CASE WHEN e.at < ?2 THEN e.entry + 1 ELSE low END, CASE WHEN e.at < ?2 THEN high ELSE e.entry END
    FROM half JOIN log_entry AS e ON e.place = ?1 AND e.entry = (low + high) / 2
    WHERE low < high
)
SELECT max(low) - 1 FROM half;

-- name: oldest_entries
-- Partitions that hold something: their log, its spec, and the instant of the oldest entry.
SELECT log_partition.log, q.spec, e.at
FROM log_partition
CROSS JOIN log_entry AS e ON e.place = log_partition.place AND e.entry = log_partition.first
CROSS JOIN queue AS q ON q.name = log_partition.log;

-- name: trim
-- Entries before an offset are gone.
DELETE FROM log_entry WHERE place = ?1 AND entry < ?2;

-- name: trimmed
-- The first offset that is left.
UPDATE log_partition SET first = ?2 WHERE place = ?1;

-- name: meet_groups
-- Every group of the log has a row for this partition.
INSERT INTO log_reader (place, reader, entry)
SELECT ?1, g.reader, -1 FROM log_group AS g WHERE g.log = ?2
ON CONFLICT DO NOTHING;

-- name: behind
-- Groups that have not had everything before an offset.
SELECT reader FROM log_reader WHERE place = ?1 AND entry + 1 < ?2;

-- name: hold_behind
-- The same: there is one writer, and it holds them all.
SELECT reader FROM log_reader WHERE place = ?1 AND entry + 1 < ?2;

-- name: count_lost
-- From one offset to another the entries go: groups that have not had them lose them.
UPDATE log_reader SET lost = lost + ?3 - max(?2, entry + 1) WHERE place = ?1 AND entry + 1 < ?3;

-- name: reader
-- The last committed offset of a group.
SELECT entry FROM log_reader WHERE place = ?1 AND reader = ?2;

-- name: lock_reader
-- The same with its owner and epoch, for a turn that commits.
SELECT entry, member, epoch FROM log_reader WHERE place = ?1 AND reader = ?2;

-- name: hold_reader
-- The last committed offset, for a turn that changes the owner.
SELECT entry FROM log_reader WHERE place = ?1 AND reader = ?2;

-- name: commit
-- A group has done everything up to an offset.
INSERT INTO log_reader (place, reader, entry, seen_at) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET entry = excluded.entry, seen_at = excluded.seen_at;

-- name: add_group
-- A new group.
INSERT INTO log_group (log, reader, seen_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING;

-- name: lock_group
-- One call at a time divides the partitions of a group: there is one writer.
SELECT seen_at FROM log_group WHERE log = ? AND reader = ?;

-- name: see_group
-- A member of the group was here.
UPDATE log_group SET seen_at = ?3 WHERE log = ?1 AND reader = ?2;

-- name: meet_partitions
-- The group has a row for every partition of the log.
INSERT INTO log_reader (place, reader, entry)
SELECT p.place, ?2, -1 FROM log_partition AS p WHERE p.log = ?1 ORDER BY p.number
ON CONFLICT DO NOTHING;

-- name: holdings
-- Each partition as a group has it: place, last committed offset, owner, epoch, the end of the owner's lease.
SELECT p.place, r.entry, r.member, r.epoch, m.until
FROM log_partition AS p
JOIN log_reader AS r ON r.place = p.place AND r.reader = ?2
LEFT JOIN log_member AS m ON m.log = p.log AND m.reader = r.reader AND m.member = r.member
WHERE p.log = ?1 ORDER BY p.number;

-- name: give
-- A partition changes hands.
UPDATE log_reader SET member = ?3, epoch = ?4 WHERE place = ?1 AND reader = ?2;

-- name: members
-- The members of a group and the ends of their leases.
SELECT member, until FROM log_member WHERE log = ? AND reader = ?;

-- name: put_member
-- The member is alive until then.
INSERT INTO log_member (log, reader, member, until) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET until = excluded.until;

-- name: drop_member
-- A member is gone.
DELETE FROM log_member WHERE log = ? AND reader = ? AND member = ?;

-- name: standings
-- A page of groups, each with every partition: its position, what it lost, the first entry it has not read, its owner.
SELECT page.reader, p.number, coalesce(r.entry, -1), p.first, p.next, coalesce(r.lost, 0), e.at,
    max(page.seen_at, coalesce(r.seen_at, 0)), r.member, r.epoch, m.until
FROM (SELECT * FROM log_group WHERE log = ?1 AND reader > ?2 ORDER BY reader LIMIT ?3) AS page
JOIN log_partition AS p ON p.log = page.log
LEFT JOIN log_reader AS r ON r.place = p.place AND r.reader = page.reader
LEFT JOIN log_entry AS e ON e.place = p.place AND e.entry = max(p.first, coalesce(r.entry, -1) + 1)
LEFT JOIN log_member AS m ON m.log = page.log AND m.reader = page.reader AND m.member = r.member;

-- name: grown
-- How much was ever appended to some logs.
SELECT total(next) FROM log_partition WHERE log IN (SELECT value FROM json_each(?));
