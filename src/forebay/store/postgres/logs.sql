-- Statements about retained logs. `place` is the number of a partition in the whole store.

-- name: partitions
-- The partitions of a log: place, first offset held, next offset, the instant of the newest entry.
SELECT place, first, next, last_at FROM forebay.log_partition WHERE log = %s ORDER BY number;

-- name: lock_partitions
-- The same, locked to append: offsets are assigned in the order of commits, without gaps.
SELECT place, first, next, last_at FROM forebay.log_partition WHERE log = %s ORDER BY number FOR UPDATE;

-- name: partition
-- One partition.
SELECT place, first, next, last_at FROM forebay.log_partition WHERE log = %s AND number = %s::bigint;

-- name: add_partition
-- A log gets one more partition; never fewer.
INSERT INTO forebay.log_partition (log, number) VALUES (%s, %s);

-- name: log_spec
-- The spec of a log.
SELECT spec FROM forebay.queue WHERE name = %s;

-- name: append
-- One entry.
INSERT INTO forebay.log_entry (place, entry, at, key, body) VALUES (%s, %s, %s, %s, %s);

-- name: appended
-- Store the next offset and the instant of the newest entry.
UPDATE forebay.log_partition AS p SET next = v.next, last_at = v.last_at
FROM (SELECT %s::integer AS place, %s::bigint AS next, %s::bigint AS last_at) AS v WHERE p.place = v.place;

-- name: entries
-- Entries after an offset.
SELECT entry, at, body, key FROM forebay.log_entry WHERE place = %s AND entry > %s ORDER BY entry LIMIT %s;

-- name: entry_before
-- The last offset that was appended before an instant, or the one before the first that is retained: offsets are dense and
-- instants never decrease, so a binary search finds it without an index.
WITH RECURSIVE half (place, at, low, high) AS (
    SELECT p.place, v.at, p.first, p.next
    FROM (SELECT %s::integer AS place, %s::bigint AS at) AS v
    JOIN forebay.log_partition AS p ON p.place = v.place
    UNION ALL
    SELECT h.place, h.at, CASE WHEN e.at < h.at THEN e.entry + 1 ELSE h.low END,
        CASE WHEN e.at < h.at THEN h.high ELSE e.entry END
    FROM half AS h JOIN forebay.log_entry AS e ON e.place = h.place AND e.entry = (h.low + h.high) / 2
    WHERE h.low < h.high
)
SELECT max(low) - 1 FROM half;

-- name: oldest_entries
-- Partitions that are not empty: their log, its spec, and the instant of the oldest entry.
SELECT p.log, q.spec, e.at
FROM forebay.log_partition AS p
JOIN forebay.log_entry AS e ON e.place = p.place AND e.entry = p.first
JOIN forebay.queue AS q ON q.name = p.log;

-- name: trim
-- Delete entries before an offset.
DELETE FROM forebay.log_entry WHERE place = %s AND entry < %s;

-- name: trimmed
-- Store the first offset that is retained.
UPDATE forebay.log_partition AS p SET first = v.first
FROM (SELECT %s::integer AS place, %s::bigint AS first) AS v WHERE p.place = v.place;

-- name: meet_groups
-- Every group of the log has a row for this partition.
INSERT INTO forebay.log_reader (place, reader, entry)
SELECT v.place, g.reader, -1
FROM (SELECT %s::integer AS place, %s::text AS log) AS v
JOIN forebay.log_group AS g ON g.log = v.log
WHERE NOT EXISTS (SELECT FROM forebay.log_reader AS r WHERE r.place = v.place AND r.reader = g.reader)
ON CONFLICT DO NOTHING;

-- name: behind
-- Groups that have not read everything before an offset.
SELECT reader FROM forebay.log_reader WHERE place = %s AND entry + 1 < %s;

-- name: hold_behind
-- The same, locked; groups whose offsets are being committed are skipped.
SELECT reader FROM forebay.log_reader WHERE place = %s AND entry + 1 < %s FOR UPDATE SKIP LOCKED;

-- name: count_lost
-- Count the entries between two offsets as lost for groups that have not read them.
UPDATE forebay.log_reader AS r SET lost = r.lost + v.until - greatest(v.start, r.entry + 1)
FROM (SELECT %s::integer AS place, %s::bigint AS start, %s::bigint AS until) AS v
WHERE r.place = v.place AND r.entry + 1 < v.until;

-- name: reader
-- The last committed offset of a group.
SELECT entry FROM forebay.log_reader WHERE place = %s AND reader = %s;

-- name: hold_reader
-- The same, locked to change the owner; no row while it is being committed.
SELECT entry FROM forebay.log_reader WHERE place = %s AND reader = %s FOR UPDATE SKIP LOCKED;

-- name: commit_offset
-- Commit an offset of a group.
SELECT known, flaw FROM forebay.commit_offset(
    in_log => %s, in_reader => %s, in_number => %s::bigint, in_entry => %s::bigint, in_rewind => %s, in_epoch => %s::bigint,
    in_at => %s::bigint
);

-- name: add_group
-- A new group.
INSERT INTO forebay.log_group (log, reader, seen_at) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING;

-- name: lock_group
-- Lock a group to divide its partitions.
SELECT seen_at FROM forebay.log_group WHERE log = %s AND reader = %s FOR UPDATE;

-- name: see_group
-- Store when a member of the group was last seen.
UPDATE forebay.log_group AS g SET seen_at = greatest(g.seen_at, v.at)
FROM (SELECT %s::text AS log, %s::text AS reader, %s::bigint AS at) AS v
WHERE g.log = v.log AND g.reader = v.reader;

-- name: meet_partitions
-- The group has a row for every partition of the log.
INSERT INTO forebay.log_reader (place, reader, entry)
SELECT p.place, v.reader, -1
FROM (SELECT %s::text AS log, %s::text AS reader) AS v JOIN forebay.log_partition AS p ON p.log = v.log
ORDER BY p.place
ON CONFLICT DO NOTHING;

-- name: holdings
-- The partitions of a group: place, last committed offset, owner, epoch, end of the owner's lease.
SELECT p.place, r.entry, r.member, r.epoch, m.until
FROM (SELECT %s::text AS log, %s::text AS reader) AS v
JOIN forebay.log_partition AS p ON p.log = v.log
JOIN forebay.log_reader AS r ON r.place = p.place AND r.reader = v.reader
LEFT JOIN forebay.log_member AS m ON m.log = v.log AND m.reader = v.reader AND m.member = r.member
ORDER BY p.number;

-- name: give
-- Another owner of a partition.
UPDATE forebay.log_reader AS r SET member = v.member, epoch = v.epoch
FROM (SELECT %s::integer AS place, %s::text AS reader, %s::text AS member, %s::bigint AS epoch) AS v
WHERE r.place = v.place AND r.reader = v.reader;

-- name: members
-- The members of a group and the ends of their leases.
SELECT member, until FROM forebay.log_member WHERE log = %s AND reader = %s;

-- name: put_member
-- Store the lease of a member.
INSERT INTO forebay.log_member (log, reader, member, until) VALUES (%s, %s, %s, %s)
ON CONFLICT (log, reader, member) DO UPDATE SET until = excluded.until;

-- name: drop_member
-- Remove a member.
DELETE FROM forebay.log_member WHERE log = %s AND reader = %s AND member = %s;

-- name: standings
-- Some groups with all their partitions: offsets, entries lost, the first unread entry, owner.
SELECT g.reader, p.number, coalesce(r.entry, -1), p.first, p.next, coalesce(r.lost, 0), e.at,
    greatest(g.seen_at, r.seen_at), r.member, r.epoch, m.until
FROM (
    SELECT * FROM forebay.log_group WHERE log = %s AND reader COLLATE "C" > %s ORDER BY reader COLLATE "C" LIMIT %s::bigint
) AS g
JOIN forebay.log_partition AS p ON p.log = g.log
LEFT JOIN forebay.log_reader AS r ON r.place = p.place AND r.reader = g.reader
LEFT JOIN forebay.log_entry AS e ON e.place = p.place AND e.entry = greatest(p.first, coalesce(r.entry, -1) + 1)
LEFT JOIN forebay.log_member AS m ON m.log = g.log AND m.reader = g.reader AND m.member = r.member;
