-- Reads of `doctor`. Every statement returns few rows, however large the store is.

-- name: server
-- The version, the settings of durability and vacuum, and whether the server accepts writes.
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'), current_setting('autovacuum'),
    current_setting('track_counts'), pg_is_in_recovery(), current_setting('default_transaction_read_only'),
    current_setting('synchronous_standby_names');

-- name: connections
-- Sessions in all databases, and their maximum for ordinary roles.
SELECT (SELECT coalesce(sum(numbackends), 0)::integer FROM pg_stat_database),
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
        - coalesce(current_setting('reserved_connections', true), '0')::integer;

-- name: held
-- Long transactions of this database, oldest first: vacuum keeps rows that were deleted after they began.
SELECT coalesce(a.pid::text, ''), coalesce(nullif(a.application_name, ''), a.backend_type, ''), coalesce(a.usename, ''),
    coalesce(a.state, ''), extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
    coalesce(age(a.backend_xmin), age(a.backend_xid), 0)::bigint
FROM pg_stat_activity AS a
WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
    AND coalesce(a.datname, current_database()) = current_database()
    AND a.xact_start < clock_timestamp() - make_interval(secs => %s)
ORDER BY a.xact_start LIMIT %s;

-- name: prepared
-- The same for prepared transactions.
SELECT p.gid, p.owner, extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction)::bigint
FROM pg_prepared_xacts AS p
WHERE p.database = current_database() AND p.prepared < clock_timestamp() - make_interval(secs => %s)
ORDER BY p.prepared LIMIT %s;

-- name: standbys
-- Connected standbys, and the bytes of the log that each has yet to replay; NULL without the right to see it.
SELECT s.application_name, coalesce(s.sync_state, ''), CASE WHEN NOT pg_is_in_recovery() THEN
    greatest(0, pg_wal_lsn_diff(pg_current_wal_lsn(), s.replay_lsn))::bigint
END
FROM pg_stat_replication AS s WHERE s.state IS DISTINCT FROM 'backup' ORDER BY s.application_name, s.pid LIMIT %s;

-- name: slots
-- Replication slots that no standby reads: the server keeps the log, and with an xmin dead rows, until they are read or dropped.
SELECT s.slot_name::text, greatest(0, pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, s.restart_lsn
))::bigint, s.xmin IS NOT NULL
FROM pg_replication_slots AS s WHERE NOT s.active AND s.restart_lsn IS NOT NULL ORDER BY s.restart_lsn LIMIT %s;

-- name: sees_others
-- Whether this role may read the sessions of other roles.
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE');

-- name: tables
-- The tables that change most: live and dead rows, seconds since the last vacuum, whether autovacuum is on.
SELECT s.relname::text, s.n_live_tup, s.n_dead_tup,
    extract(epoch FROM clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))::float8,
    NOT coalesce(c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'], false)
FROM pg_stat_user_tables AS s JOIN pg_class AS c ON c.oid = s.relid
WHERE s.schemaname = 'forebay' AND s.relname IN ('run', 'ended', 'key', 'settled')
ORDER BY array_position(ARRAY['run', 'ended', 'key', 'settled'], s.relname::text);

-- name: applied
-- The migrations that were applied.
SELECT number, name, extract(epoch FROM applied_at)::float8 FROM forebay.migration ORDER BY number;
