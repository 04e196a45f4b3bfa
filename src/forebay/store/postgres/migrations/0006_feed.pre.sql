-- How far sources that repeat themselves have come (store/feeding.py); `at`: when a source was last heard of.
CREATE TABLE forebay.feed (
    source text PRIMARY KEY,
    batch bigint NOT NULL,
    taken bigint NOT NULL,
    digest bytea NOT NULL,
    at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
