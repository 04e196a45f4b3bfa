-- The whole state of a store. Instants are microseconds since 1970.

CREATE SCHEMA forebay;
COMMENT ON SCHEMA forebay IS 'Forebay, a durable job queue. For people: the view forebay.jobs and the function forebay.enqueue.';

CREATE TABLE forebay.migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- One call of enqueue takes one value: its jobs have this id and the next ones, a call has at most a thousand.
CREATE SEQUENCE forebay.job_id INCREMENT 1000;

-- Queues with a spec, a pause or a bound. `version` tells a process that its picture of the spec is old.
-- `depth_most`: the jobs of a bounded queue are no more than that; counted again only when that is not enough.
-- For the SQL function: `plain`: its jobs need no stamps but the time; `lives` and `key_window`: NULL, the defaults.
CREATE TABLE forebay.queue (
    name text PRIMARY KEY,
    version integer NOT NULL DEFAULT 0,
    spec text,
    paused_until bigint,
    depth_most bigint NOT NULL DEFAULT 0,
    is_log boolean NOT NULL DEFAULT false,
    plain boolean NOT NULL DEFAULT true,
    lives integer,
    key_window bigint
);

-- A run: n jobs that arrived together and are alike in all that a claim looks at. Their ids are the n up to `last_id`,
-- their payloads the last n of the `size` elements of `bodies`. Most runs have n = 1.
--   state   0 held by a gate or its time · 1 ready · 2 running · 3 will be ready when it is due
--   single  one job that was put or broken out alone; so a job may have the last id of the run that it came from
--   gone    of a running run: the jobs that have been settled
--   asked   of a running run: the jobs whose holder is to be told of a cancellation
--   beat    the lease also lasts as long as its holder's
--   facts   per job what differs or is rare: kind, tenant, subject, key, priority, deadline, meta; NULL: nothing
--   gate    where a held job is parked; NULL with state 0: it waits for its time
CREATE TABLE forebay.run (
    last_id bigint NOT NULL,
    rank bigint NOT NULL,
    due_at bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    rank_base bigint NOT NULL,
    lease_until bigint,
    claimed_at bigint,
    expires_at bigint,
    n integer NOT NULL,
    size integer NOT NULL,
    delivery integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    holder integer,
    settled_delivery integer NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    single boolean NOT NULL,
    beat boolean NOT NULL DEFAULT true,
    rank_timed smallint NOT NULL,
    merges boolean NOT NULL DEFAULT false,
    queue text NOT NULL,
    cls text NOT NULL,
    kind text NOT NULL,
    settled_code text NOT NULL DEFAULT '',
    subject text,
    gate text,
    gates text,
    gone bit varying,
    asked bit varying,
    errors text,
    facts json,
    bodies json NOT NULL,
    PRIMARY KEY (single, last_id)
) WITH (
    fillfactor = 70, toast_tuple_target = 128,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 1, autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 2000000000,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000,
    toast.autovacuum_vacuum_cost_delay = 0
);
DO $$
BEGIN
    ALTER TABLE forebay.run ALTER COLUMN bodies SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    RAISE NOTICE 'this server was built without lz4: payloads are compressed by pglz';
END
$$;
CREATE INDEX run_ready ON forebay.run (queue, cls, rank, last_id) WHERE state = 1;
CREATE INDEX run_later ON forebay.run (queue, cls, due_at, last_id) WHERE state = 3;
CREATE INDEX run_due ON forebay.run (due_at) WHERE state = 3;
CREATE INDEX run_gated ON forebay.run (due_at) WHERE state = 0 AND gate IS NULL;
CREATE INDEX run_parked ON forebay.run (gate, rank, last_id) WHERE gate IS NOT NULL;
CREATE INDEX run_held ON forebay.run (holder, lease_until) WHERE state = 2;
CREATE INDEX run_alone ON forebay.run (lease_until) WHERE state = 2 AND NOT beat;
CREATE INDEX run_expiring ON forebay.run (expires_at) WHERE expires_at IS NOT NULL AND state <> 2;
CREATE INDEX run_fresh ON forebay.run (queue, subject) WHERE merges;

-- Finished jobs that stay readable, a row each. States: 3 done, 4 dead, 5 cancelled.
CREATE TABLE forebay.ended (
    id bigint PRIMARY KEY,
    due_at bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    finished_at bigint NOT NULL,
    kept_until bigint,
    expires_at bigint,
    rank_base bigint NOT NULL,
    delivery integer NOT NULL,
    attempt integer NOT NULL,
    max_attempts integer NOT NULL,
    settled_delivery integer NOT NULL,
    state smallint NOT NULL,
    rank_timed smallint NOT NULL,
    cancel_requested boolean NOT NULL,
    queue text NOT NULL,
    cls text NOT NULL,
    kind text NOT NULL,
    settled_code text NOT NULL,
    gates text,
    errors text,
    facts json,
    body json NOT NULL,
    result json
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ended_finished ON forebay.ended (state, finished_at, id);
CREATE INDEX ended_kept ON forebay.ended (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX ended_queue ON forebay.ended (queue, state);
CREATE INDEX ended_dead ON forebay.ended (id) WHERE state = 4;

-- One row for each process that claims, under each of its names. `until` is its heartbeat; `changes` counts what others
-- did to its leases, so that a heartbeat need not look at them one by one.
CREATE TABLE forebay.holder (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text NOT NULL,
    until bigint NOT NULL DEFAULT 0,
    changes integer NOT NULL DEFAULT 0,
    seen_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- How far running jobs say they are. Nothing depends on it, so a crash may empty it; only rows of the current delivery count.
CREATE UNLOGGED TABLE forebay.progress (
    id bigint PRIMARY KEY,
    delivery integer NOT NULL,
    portion double precision NOT NULL,
    note text NOT NULL,
    at bigint NOT NULL
) WITH (fillfactor = 50);

-- Idempotency keys, each with its own window.
CREATE TABLE forebay.key (
    queue text NOT NULL,
    key text NOT NULL,
    job_id bigint NOT NULL,
    until bigint NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX key_until ON forebay.key (until);

-- Calls of enqueue whose reply may get lost: who repeats a call is given its first answer.
CREATE TABLE forebay.call (
    token uuid PRIMARY KEY,
    first_id bigint NOT NULL,
    at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX call_at ON forebay.call (at);

-- The last settles of jobs that are gone, a row a call: job i of it has `sizes[i]` ids from `firsts[i]` on.
CREATE TABLE forebay.settled (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    jobs integer NOT NULL,
    firsts bigint[] NOT NULL,
    sizes integer[] NOT NULL,
    deliveries integer[] NOT NULL,
    codes text[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Gates that somebody holds, waits at or stands in line for, and the operators' own numbers.
CREATE TABLE forebay.gate (
    name text PRIMARY KEY,
    slots integer NOT NULL,
    held integer NOT NULL,
    parked integer NOT NULL,
    standing integer NOT NULL,
    opened boolean NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX gate_opened ON forebay.gate (name) WHERE opened;
CREATE TABLE forebay.gate_limit (name text PRIMARY KEY, slots integer NOT NULL);
CREATE TABLE forebay.line (gate text NOT NULL, id bigint NOT NULL, PRIMARY KEY (gate, id));

-- Jobs put by the SQL function into queues whose rules need core: the next process that looks takes them in.
CREATE TABLE forebay.inbox (id bigint PRIMARY KEY, draft json NOT NULL);

-- `last_at` outlives a schedule that is dropped (`body` is then NULL): a tick fires once, for ever.
CREATE TABLE forebay.schedule (name text PRIMARY KEY, body text, last_at bigint);

CREATE TABLE forebay.log_partition (
    place integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log text NOT NULL,
    number integer NOT NULL,
    first bigint NOT NULL DEFAULT 0,
    next bigint NOT NULL DEFAULT 0,
    UNIQUE (log, number)
) WITH (fillfactor = 50);
CREATE TABLE forebay.log_entry (
    place integer NOT NULL,
    entry bigint NOT NULL,
    at bigint NOT NULL,
    key text,
    body bytea NOT NULL,
    PRIMARY KEY (place, entry)
);
CREATE TABLE forebay.log_reader (
    place integer NOT NULL,
    reader text NOT NULL,
    entry bigint NOT NULL,
    PRIMARY KEY (place, reader)
) WITH (fillfactor = 50);

-- Workers that announced themselves (core.presence), each until its time is up; what they say is JSON.
CREATE TABLE forebay.worker (
    owner text COLLATE "C" PRIMARY KEY,
    since bigint NOT NULL,
    seen_at bigint NOT NULL,
    until bigint NOT NULL,
    body text NOT NULL
) WITH (fillfactor = 50);
