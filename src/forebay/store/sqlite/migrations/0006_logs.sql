-- Groups of readers by name: who owns which partition in which epoch, when a group was last seen, what it lost.
-- `last_at`: the instant of the newest entry; instants of a partition never fall.

ALTER TABLE log_partition ADD COLUMN last_at INTEGER NOT NULL DEFAULT 0;

ALTER TABLE log_reader ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;
ALTER TABLE log_reader ADD COLUMN seen_at INTEGER NOT NULL DEFAULT 0;
ALTER TABLE log_reader ADD COLUMN member TEXT;
ALTER TABLE log_reader ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;

CREATE TABLE log_group (
    log TEXT NOT NULL,
    reader TEXT NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (log, reader)
) WITHOUT ROWID;
INSERT INTO log_group
SELECT DISTINCT p.log, r.reader, h.last_at FROM log_reader AS r JOIN log_partition AS p ON p.place = r.place, head AS h;

CREATE TABLE log_member (
    log TEXT NOT NULL,
    reader TEXT NOT NULL,
    member TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (log, reader, member)
) WITHOUT ROWID;
