-- What `doctor` asks a server. Every statement only looks, and answers with few rows however large the store is.

-- name: server
-- The version, what decides whether a commit is kept, whether dead rows are cleared away, and whether it can write.
SELECT current_setting('server_version_num')::integer, current_setting('server_version'), current_setting('fsync'),
    current_setting('full_page_writes'), current_setting('synchronous_commit'), current_setting('autovacuum'),
    current_setting('track_counts'), pg_is_in_recovery(), current_setting('default_transaction_read_only');

-- name: connections
-- How many sessions there are in all databases, and how many there can be for people without special rights.
SELECT (SELECT coalesce(sum(numbackends), 0)::integer FROM pg_stat_database),
    current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
        - coalesce(current_setting('reserved_connections', true), '0')::integer;

-- name: held
-- Transactions of this database that have been open for long, oldest first: what dies after they began is kept.
SELECT coalesce(a.pid::text, ''), coalesce(nullif(a.application_name, ''), a.backend_type, ''), coalesce(a.usename, ''),
    coalesce(a.state, ''), extract(epoch FROM clock_timestamp() - a.xact_start)::float8,
    coalesce(age(a.backend_xmin), age(a.backend_xid), 0)::bigint
FROM pg_stat_activity AS a
WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.pid <> pg_backend_pid()
    AND coalesce(a.datname, current_database()) = current_database()
    AND a.xact_start < clock_timestamp() - make_interval(secs => %s)
ORDER BY a.xact_start LIMIT %s;

-- name: prepared
-- The same for transactions that were prepared for a second phase and then forgotten.
SELECT p.gid, p.owner, extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction)::bigint
FROM pg_prepared_xacts AS p
WHERE p.database = current_database() AND p.prepared < clock_timestamp() - make_interval(secs => %s)
ORDER BY p.prepared LIMIT %s;

-- name: sees_others
-- Whether this user is shown what the sessions of other users do.
SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE');

-- name: tables
-- The tables that change most: live and dead rows, the seconds since they were last cleared, whether that is allowed.
SELECT s.relname::text, s.n_live_tup, s.n_dead_tup,
    extract(epoch FROM clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))::float8,
    NOT coalesce(c.reloptions && ARRAY['autovacuum_enabled=false', 'autovacuum_enabled=off'], false)
FROM pg_stat_user_tables AS s JOIN pg_class AS c ON c.oid = s.relid
WHERE s.schemaname = 'forebay' AND s.relname IN ('run', 'ended', 'key', 'settled')
ORDER BY array_position(ARRAY['run', 'ended', 'key', 'settled'], s.relname::text);

-- name: applied
-- The migrations that this database has had.
SELECT number, name, extract(epoch FROM applied_at)::float8 FROM forebay.migration ORDER BY number;
