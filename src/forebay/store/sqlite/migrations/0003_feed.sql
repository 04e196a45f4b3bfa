-- How far sources that repeat themselves have come (store/feeding.py); `at`: when a source was last heard of.
CREATE TABLE feed (
    source TEXT PRIMARY KEY,
    batch INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    digest BLOB NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX feed_at ON feed (at);
