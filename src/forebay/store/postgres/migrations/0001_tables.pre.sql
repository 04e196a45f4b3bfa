-- The whole state of a store. Instants are microseconds since 1970.

CREATE SCHEMA forebay;
COMMENT ON SCHEMA forebay IS 'Forebay, a durable job queue. Public: the view forebay.jobs and the function forebay.enqueue.';

CREATE TABLE forebay.migration (
    number integer PRIMARY KEY,
    name text NOT NULL,
    checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
);

-- A call of enqueue takes one value: its jobs have this id and the following ones; a call has at most a thousand.
CREATE SEQUENCE forebay.job_id INCREMENT 1000;

-- Queues with a spec, a pause or a bound.
--   version        changes with the spec; a call with an older one is refused
--   max_depth      an upper bound of the jobs of a bounded queue; they are counted only when it would be exceeded
--   unique_states  a key whose `until` is beyond all instants (7258118400000000) is taken while its job is in one of these
--                  states; bits in the order waiting, ready, running, done, dead, cancelled
-- From the spec, for the SQL function:
--   plain          its jobs need no stamps but the time
--   max_attempts, key_window  NULL: the default
-- From the spec, for gates, lanes and lines (core/gate.py):
--   laned          its jobs have classes that share, or gates of their own
--   whole          gates of the whole queue: objects with name, slots, step, shared
--   terms          rules of the gates that jobs are stamped with: objects with prefix, exact, slots, step
--   weights, weight  NULL: classes do not share
-- Of dead letters, so that a million of them are not counted each time that a few are added:
--   max_dead       how many it keeps; the other two are for queues that have this
--   dead_counted, dead_counted_to  how many died up to that instant; NULL: count again
CREATE TABLE forebay.queue (
    name text COLLATE "C" PRIMARY KEY,
    version integer NOT NULL DEFAULT 0,
    spec text,
    paused_until bigint,
    max_depth bigint NOT NULL DEFAULT 0,
    is_log boolean NOT NULL DEFAULT false,
    plain boolean NOT NULL DEFAULT true,
    max_attempts integer,
    key_window bigint,
    unique_states smallint,
    laned boolean NOT NULL DEFAULT false,
    whole jsonb NOT NULL DEFAULT '[]',
    terms jsonb NOT NULL DEFAULT '[]',
    weights jsonb,
    weight integer,
    max_dead bigint,
    dead_counted bigint NOT NULL DEFAULT 0,
    dead_counted_to bigint
);
CREATE INDEX queue_gated ON forebay.queue (name) WHERE whole <> '[]';
CREATE INDEX queue_dead_limit ON forebay.queue (name) WHERE max_dead IS NOT NULL;

-- A run: n unclaimed jobs that were enqueued together and that a claim cannot tell apart. Their ids are the n up to
-- `last_id`, their payloads the last n of the `size` elements of `bodies`. Most runs have n = 1.
--   state   0 behind the head of its line · 1 ready · 3 becomes ready when it is due
--   single  a run of one job that was inserted or released alone
--   cancel_requested  its cancellation was requested while it ran
--   facts   for each job what differs or is rare: kind, tenant, subject, key, priority, deadline, meta; NULL: nothing
--   cost    the slots that each of its jobs takes at a gate
--   lane    names its class and gates (core's `lane_key`); `gates`: their names, NULL if there are none
--   line    exposes only its smallest unfinished id; `blocks`: a dead head blocks it. Lines of a queue are found by prefix,
--           so names are compared byte by byte, whatever the collation of the database
CREATE TABLE forebay.run (
    last_id bigint NOT NULL,
    rank bigint NOT NULL,
    due_at bigint NOT NULL,
    enqueued_at bigint NOT NULL,
    rank_base bigint NOT NULL,
    expires_at bigint,
    n integer NOT NULL,
    size integer NOT NULL,
    cost integer NOT NULL DEFAULT 1,
    delivery integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    settled_delivery integer NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    single boolean NOT NULL,
    cancel_requested boolean NOT NULL DEFAULT false,
    rank_timed smallint NOT NULL,
    merges boolean NOT NULL DEFAULT false,
    blocks boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    cls text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    settled_code text NOT NULL DEFAULT '',
    subject text,
    line text COLLATE "C",
    gates text[],
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
-- Columns that claims and settles read stay in the row; payloads and facts do not.
ALTER TABLE forebay.run ALTER COLUMN queue SET STORAGE MAIN, ALTER COLUMN lane SET STORAGE MAIN,
    ALTER COLUMN line SET STORAGE MAIN, ALTER COLUMN gates SET STORAGE MAIN;
CREATE INDEX run_ready ON forebay.run (queue, lane, rank, last_id) WHERE state = 1;
CREATE INDEX run_waiting ON forebay.run (queue, state, due_at, last_id) WHERE state <> 1;
CREATE INDEX run_due ON forebay.run (due_at) WHERE state = 3;
CREATE INDEX run_expiring ON forebay.run (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX run_merges ON forebay.run (queue, subject) WHERE merges;
CREATE INDEX run_line ON forebay.run (line, least(state, 1), last_id) WHERE line IS NOT NULL;

-- A run, or the first jobs of one, that is claimed; with the attempt and the delivery of the claim.
CREATE TYPE forebay.member AS (
    last_id bigint, rank bigint, due_at bigint, enqueued_at bigint, rank_base bigint, expires_at bigint, n integer, size integer,
    cost integer, delivery integer, attempt integer, max_attempts integer, settled_delivery integer, rank_timed smallint,
    blocks boolean, cancel_requested boolean, lane text, cls text, kind text, settled_code text, line text, gates text[], errors text,
    facts json, bodies json
);

-- A pack: the n jobs of a queue that one claim took, as one row. Its members and the positions of its jobs in them, from 0
-- on, never change, so that a pack and a position are a fence: no delivery needs to be compared.
--   ids           the smallest and the largest id in it
--   settled       the jobs that have been settled; the row is deleted with the last one
--   cancel_requested  the jobs whose cancellation is requested
--   by_heartbeat  the heartbeat of its holder extends it
--   plain         none of its jobs has a lane or a line
CREATE TABLE forebay.pack (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lease_until bigint NOT NULL,
    claimed_at bigint NOT NULL,
    n integer NOT NULL,
    holder integer NOT NULL,
    by_heartbeat boolean NOT NULL,
    plain boolean NOT NULL,
    queue text COLLATE "C" NOT NULL,
    ids int8range NOT NULL,
    settled bit varying,
    cancel_requested bit varying,
    members forebay.member[] NOT NULL
) WITH (
    fillfactor = 50, toast_tuple_target = 256,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 1, autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 2000000000,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000,
    toast.autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE forebay.pack ALTER COLUMN queue SET STORAGE MAIN, ALTER COLUMN ids SET STORAGE MAIN,
    ALTER COLUMN settled SET STORAGE MAIN, ALTER COLUMN cancel_requested SET STORAGE MAIN;
CREATE INDEX pack_held ON forebay.pack (holder, lease_until);
CREATE INDEX pack_fixed ON forebay.pack (lease_until) WHERE NOT by_heartbeat;
CREATE INDEX pack_ids ON forebay.pack USING gist (ids);

-- Running jobs that have a line.
CREATE TABLE forebay.running_line (
    line text COLLATE "C" NOT NULL,
    id bigint NOT NULL,
    PRIMARY KEY (line, id)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Finished jobs that stay readable, a row each. States: 3 done, 4 dead, 5 cancelled.
-- `home`: the queue in which a dead job died, if it is kept in another one (`queue`).
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
    queue text COLLATE "C" NOT NULL,
    cls text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    settled_code text NOT NULL,
    cost integer NOT NULL DEFAULT 1,
    blocks boolean NOT NULL DEFAULT false,
    lane text COLLATE "C" NOT NULL DEFAULT '',
    line text COLLATE "C",
    gates text[],
    errors text,
    facts json,
    body json NOT NULL,
    result json,
    home text COLLATE "C"
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ended_finished ON forebay.ended (state, finished_at, id);
CREATE INDEX ended_kept ON forebay.ended (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX ended_dead ON forebay.ended (id) WHERE state = 4;
CREATE INDEX ended_blocks ON forebay.ended (line, id) WHERE state = 4 AND blocks;
CREATE INDEX ended_queue ON forebay.ended (queue, state, finished_at, id);

-- One row for each process that claims, under each of its owner names. `until`: the end of the leases that its heartbeat
-- extends; `changes` counts changes by others to its leases, so that a heartbeat need not check them one by one.
CREATE TABLE forebay.holder (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    owner text NOT NULL,
    until bigint NOT NULL DEFAULT 0,
    changes integer NOT NULL DEFAULT 0,
    seen_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Progress that running jobs report; only rows of the current delivery count. A crash of the server may empty the table.
CREATE UNLOGGED TABLE forebay.progress (
    id bigint PRIMARY KEY,
    delivery integer NOT NULL,
    portion double precision NOT NULL,
    note text NOT NULL,
    at bigint NOT NULL
) WITH (fillfactor = 50);

-- Idempotency keys, each with its own window.
CREATE TABLE forebay.key (
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    job_id bigint NOT NULL,
    until bigint NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (queue, key)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX key_until ON forebay.key (until);
CREATE INDEX key_by_state ON forebay.key (queue, key) WHERE until >= 7258118400000000;

-- Calls of enqueue whose reply may be lost: a repeated call gets the answer of the first.
CREATE TABLE forebay.call (
    token uuid PRIMARY KEY,
    first_id bigint NOT NULL,
    at bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX call_at ON forebay.call (at);

-- The last settles of jobs that were deleted, a row for each call: element i is of the `sizes[i]` ids from `firsts[i]` on.
CREATE TABLE forebay.settled (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    jobs integer NOT NULL,
    firsts bigint[] NOT NULL,
    sizes integer[] NOT NULL,
    deliveries integer[] NOT NULL,
    codes text[] NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);

-- Gates in use: the slots of a cap that running jobs use, the theoretical arrival time of a rate. `slots`: of the spec of
-- the queue that used the gate last. A gate that is not in use has no row.
CREATE TABLE forebay.gate (
    name text COLLATE "C" PRIMARY KEY,
    slots integer NOT NULL,
    used integer NOT NULL DEFAULT 0,
    tat bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE INDEX gate_tat ON forebay.gate (tat) WHERE tat > 0;

-- Lanes with ready jobs, of queues that have lanes.
--   cls       '' if classes do not share
--   rank, id  no job of an open lane goes before this place; a job of a parked lane has it
--   at        the gate where it is parked; NULL: it is open
--   opens_at  of a rate, when the first lane that is parked there may start
--   untils    those of its gates that are conditions; NULL: none
CREATE TABLE forebay.lane (
    queue text COLLATE "C" NOT NULL,
    lane text COLLATE "C" NOT NULL,
    cls text COLLATE "C" NOT NULL,
    rank bigint NOT NULL,
    id bigint NOT NULL,
    at text COLLATE "C",
    opens_at bigint,
    gates text[] NOT NULL,
    untils text[],
    PRIMARY KEY (queue, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX lane_open ON forebay.lane (queue, cls, rank, id) WHERE at IS NULL;
CREATE INDEX lane_parked ON forebay.lane (at, queue, rank, id) WHERE at IS NOT NULL;
CREATE INDEX lane_class ON forebay.lane (queue, cls) WHERE at IS NOT NULL;
CREATE INDEX lane_opens ON forebay.lane (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX lane_opening ON forebay.lane (queue, opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX lane_until ON forebay.lane USING gin (untils) WHERE untils IS NOT NULL;

-- Classes of queues that share, by their turns (core/share.py). `open`: some of its lanes are; `idle`: it has none at all.
CREATE TABLE forebay.class (
    queue text COLLATE "C" NOT NULL,
    cls text COLLATE "C" NOT NULL,
    turn bigint NOT NULL,
    open boolean NOT NULL,
    idle boolean NOT NULL,
    PRIMARY KEY (queue, cls)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX class_open ON forebay.class (queue, turn) WHERE open;
CREATE INDEX class_idle ON forebay.class (queue, turn) WHERE idle;

-- The turn of the class of a queue that started last in its turn.
CREATE TABLE forebay.share (queue text COLLATE "C" PRIMARY KEY, turn bigint NOT NULL)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The operators' own limits.
CREATE TABLE forebay.gate_limit (name text COLLATE "C" PRIMARY KEY, slots integer NOT NULL);

-- Jobs that the SQL function enqueued into queues with rules that only core has: the next process applies them.
CREATE TABLE forebay.inbox (id bigint PRIMARY KEY, draft json NOT NULL);

-- `last_at` is kept when a schedule is dropped (`body` is then NULL), so that a tick never fires twice.
CREATE TABLE forebay.schedule (name text PRIMARY KEY, body text, last_at bigint);

-- Checkpoints of sources that repeat themselves (store/protocol.py); `at`: of the last change.
CREATE TABLE forebay.source (
    source text PRIMARY KEY,
    batch bigint NOT NULL,
    taken bigint NOT NULL,
    digest bytea NOT NULL,
    at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Partitions of retained logs. `place`: its number in the whole store, `number`: in its log. `first`, `next`: the offsets of the
-- first entry that is kept, and of the next one. `last_at`: the instant of the newest entry; instants never decrease.
CREATE TABLE forebay.log_partition (
    place integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    log text NOT NULL,
    number integer NOT NULL,
    first bigint NOT NULL DEFAULT 0,
    next bigint NOT NULL DEFAULT 0,
    last_at bigint NOT NULL DEFAULT 0,
    UNIQUE (log, number)
) WITH (fillfactor = 50);

-- `entry`: the offset in the partition.
CREATE TABLE forebay.log_entry (
    place integer NOT NULL,
    entry bigint NOT NULL,
    at bigint NOT NULL,
    key text,
    body bytea NOT NULL,
    PRIMARY KEY (place, entry)
);

-- A group of readers (`reader`) in a partition: the offset that it has committed (`entry`), how many entries it lost, and the
-- member that owns the partition, with the epoch of that.
CREATE TABLE forebay.log_reader (
    place integer NOT NULL,
    reader text NOT NULL,
    entry bigint NOT NULL,
    lost bigint NOT NULL DEFAULT 0,
    seen_at bigint NOT NULL DEFAULT 0,
    member text,
    epoch bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (place, reader)
) WITH (fillfactor = 50);

-- Groups of readers, and when one of their members was last seen.
CREATE TABLE forebay.log_group (
    log text NOT NULL,
    reader text NOT NULL,
    seen_at bigint NOT NULL,
    PRIMARY KEY (log, reader)
) WITH (fillfactor = 50);

-- Members of groups, each until its lease ends.
CREATE TABLE forebay.log_member (
    log text NOT NULL,
    reader text NOT NULL,
    member text NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (log, reader, member)
) WITH (fillfactor = 50);

-- Workers (core.presence), each until its announcement expires; `body` is JSON.
CREATE TABLE forebay.worker (
    owner text COLLATE "C" PRIMARY KEY,
    since bigint NOT NULL,
    seen_at bigint NOT NULL,
    until bigint NOT NULL,
    body text NOT NULL
) WITH (fillfactor = 50);

-- The timeline of the server on which ids were last assigned, one row (0013_timeline.pre.sql).
CREATE TABLE forebay.timeline (number integer NOT NULL);

-- Records of the ledger. `ranges`: arrays as in core. In a record of `settle`, `until` of a range is a duration from `at` on.
-- Records get their offsets, without gaps and for good, once none can come to precede them (`number_ledger`): `seq` is taken in
-- the order of the changes, `xid` is the transaction.
CREATE TABLE forebay.ledger (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at bigint NOT NULL,
    tick bigint,
    verb text NOT NULL,
    owner text,
    name text,
    ranges json
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 2000000000);
CREATE INDEX ledger_xid ON forebay.ledger (xid);

-- `n` records from offset `first` on, in the order of `seq`: those of transactions from `xid_from` up to `xid_upto`, and those of
-- earlier transactions from `seq_floor` on, which had to wait.
CREATE TABLE forebay.ledger_page (
    first bigint PRIMARY KEY,
    n integer NOT NULL,
    seq_from bigint NOT NULL,
    seq_upto bigint NOT NULL,
    seq_floor bigint NOT NULL,
    xid_from xid8 NOT NULL,
    xid_upto xid8 NOT NULL
);

-- What has offsets: records below `seq_upto` of transactions below `upto`, and all up to `after_seq`, which came with a dump of
-- another server.
CREATE TABLE forebay.ledger_mark (
    next bigint NOT NULL DEFAULT 0,
    upto xid8 NOT NULL DEFAULT '0',
    seq_upto bigint NOT NULL DEFAULT 0,
    after_seq bigint NOT NULL DEFAULT 0,
    bytes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO forebay.ledger_mark DEFAULT VALUES;

-- Whether records are written, and the age and bytes up to which they are kept: a week, a gibibyte.
CREATE TABLE forebay.ledger_rule (
    recording boolean NOT NULL DEFAULT true,
    keep bigint NOT NULL DEFAULT 604800000000,
    keep_bytes bigint NOT NULL DEFAULT 1073741824
);
INSERT INTO forebay.ledger_rule DEFAULT VALUES;

DO $$
BEGIN
    ALTER TABLE forebay.run ALTER COLUMN bodies SET COMPRESSION lz4;
    ALTER TABLE forebay.pack ALTER COLUMN members SET COMPRESSION lz4;
    ALTER TABLE forebay.ledger ALTER COLUMN ranges SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    RAISE NOTICE 'this server was built without lz4: payloads and records are compressed by pglz';
END
$$;
