-- The whole state of a store. Instants are microseconds since 1970. States: 0 waiting, 1 ready, 2 running, 3 done,
-- 4 dead, 5 cancelled. Every poll has one partial index, which holds nothing but the rows that the poll may return.

-- One row. `half` and `filled`: which of the two tables of removed jobs is being filled, and how far.
-- `ledger_*`: the entries held and their bytes, and the rule that says whether there are any, how long and how many.
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    next_id INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    half INTEGER NOT NULL,
    filled INTEGER NOT NULL,
    ledger_first INTEGER NOT NULL DEFAULT 0,
    ledger_next INTEGER NOT NULL DEFAULT 0,
    ledger_bytes INTEGER NOT NULL DEFAULT 0,
    ledger_on INTEGER NOT NULL DEFAULT 1,
    ledger_keep INTEGER NOT NULL DEFAULT 604800000000,
    ledger_keep_bytes INTEGER NOT NULL DEFAULT 1073741824
);
INSERT INTO head (one, next_id, last_at, half, filled) VALUES (1, 1, 0, 0, 0);

-- Small columns first: reading them of a row with a large payload then needs no further page.
-- `lane`: its class and its gates, as core.gate.lane_key writes them. `merges`: newer work may still take its place.
-- `line`: only the smallest unfinished id of it is exposed, the others are `behind`; `blocks`: if it dies as the head of
-- its line, that stays shut. `sheds`: its queue sheds; only such jobs are in the indexes for shedding.
-- `home`: the queue of a dead job whose dead letter belongs to another one.
CREATE TABLE job (
    id INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    rank INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    delivery INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    lease_until INTEGER,
    claimed_at INTEGER,
    owner TEXT,
    enqueued_at INTEGER NOT NULL,
    finished_at INTEGER,
    kept_until INTEGER,
    expires_at INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    settled_delivery INTEGER NOT NULL DEFAULT 0,
    settled_code TEXT NOT NULL DEFAULT '',
    priority INTEGER NOT NULL DEFAULT 0,
    rank_base INTEGER NOT NULL DEFAULT 0,
    rank_timed INTEGER NOT NULL DEFAULT 1,
    merges INTEGER NOT NULL DEFAULT 0,
    line TEXT,
    blocks INTEGER NOT NULL DEFAULT 0,
    behind INTEGER NOT NULL DEFAULT 0,
    cost INTEGER NOT NULL DEFAULT 1,
    kind TEXT NOT NULL,
    tenant TEXT,
    subject TEXT,
    key TEXT,
    deadline INTEGER,
    meta TEXT,
    body BLOB NOT NULL,
    errors TEXT,
    result BLOB,
    sheds INTEGER,
    home TEXT
);
CREATE INDEX job_ready ON job (queue, lane, rank) WHERE state = 1;
CREATE INDEX job_not_by_age ON job (queue, due_at) WHERE state = 1 AND (rank <> due_at OR lane <> '');
CREATE INDEX job_due ON job (due_at) WHERE state = 0 AND behind = 0;
CREATE INDEX job_line ON job (line) WHERE line IS NOT NULL AND (state < 3 OR state = 4 AND blocks = 1);
CREATE INDEX job_dead_head ON job (line) WHERE line IS NOT NULL AND state = 4 AND blocks = 1;
CREATE INDEX job_lease ON job (lease_until) WHERE state = 2;
CREATE INDEX job_cancel_requested ON job (owner) WHERE cancel_requested = 1 AND state = 2;
CREATE INDEX job_expiring ON job (expires_at) WHERE expires_at IS NOT NULL AND state < 2;
CREATE INDEX job_kept ON job (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX job_finished ON job (state, finished_at) WHERE state > 2;
CREATE INDEX job_dead ON job (state) WHERE state = 4;
CREATE INDEX job_fresh ON job (queue, subject) WHERE merges = 1;
CREATE INDEX job_oldest ON job (queue) WHERE sheds = 1 AND state < 2;
CREATE INDEX job_lowest ON job (queue, rank) WHERE sheds = 1 AND state < 2;
CREATE INDEX job_ended ON job (state, queue, finished_at) WHERE state > 2;

-- The reported progress of running jobs. Rows of deliveries that have ended mean nothing, and are dropped in passing.
CREATE TABLE progress (
    id INTEGER PRIMARY KEY,
    delivery INTEGER NOT NULL,
    portion REAL NOT NULL,
    note TEXT NOT NULL,
    at INTEGER NOT NULL
);

-- A queue and how many jobs it has in each state. `laned`: ready jobs in other lanes than the plain one, which is ''.
-- `turn`: that of the class that started last. `paced`: a rate of its spec holds the whole queue.
-- `max_dead`: as the spec says; where there are more, the oldest are deleted.
CREATE TABLE queue (
    name TEXT PRIMARY KEY,
    spec TEXT,
    paused_until INTEGER,
    waiting INTEGER NOT NULL DEFAULT 0,
    ready INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    cancelled INTEGER NOT NULL DEFAULT 0,
    laned INTEGER NOT NULL DEFAULT 0,
    turn INTEGER NOT NULL DEFAULT 0,
    paced INTEGER NOT NULL DEFAULT 0,
    keys INTEGER NOT NULL DEFAULT 0,
    max_dead INTEGER
) WITHOUT ROWID;
CREATE INDEX queue_over_dead_limit ON queue (name) WHERE dead > max_dead;
CREATE INDEX queue_paced ON queue (name) WHERE paced = 1 AND ready > 0;

-- Lanes that have ready jobs, but for the plain one. `rank` and `id`: its first job comes no earlier than that.
-- `at`: the closed gate where it is parked, and `turn` that of its class when it parked; else 0.
CREATE TABLE lane (
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    cls TEXT NOT NULL,
    rank INTEGER NOT NULL,
    id INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    at TEXT,
    PRIMARY KEY (queue, lane)
) WITHOUT ROWID;
CREATE INDEX lane_open ON lane (queue, cls, rank, id) WHERE at IS NULL;
CREATE INDEX lane_parked ON lane (at, queue, turn, rank, id) WHERE at IS NOT NULL;
CREATE INDEX lane_held ON lane (queue, cls) WHERE at IS NOT NULL;

-- Gates that may have room for a lane of the queue that is parked there.
CREATE TABLE woken (queue TEXT NOT NULL, gate TEXT NOT NULL, PRIMARY KEY (queue, gate)) WITHOUT ROWID;

-- The lanes that have to pass a condition, for `release`.
CREATE TABLE lane_until (
    gate TEXT NOT NULL,
    queue TEXT NOT NULL,
    lane TEXT NOT NULL,
    PRIMARY KEY (gate, queue, lane)
) WITHOUT ROWID;

-- Turns of the classes of queues that share (core.share). `open`: it may have a lane that is not parked.
CREATE TABLE class (
    queue TEXT NOT NULL,
    cls TEXT NOT NULL,
    turn INTEGER NOT NULL,
    open INTEGER NOT NULL,
    PRIMARY KEY (queue, cls)
) WITHOUT ROWID;
CREATE INDEX class_turn ON class (queue, turn, cls) WHERE open = 1;
CREATE INDEX class_idle ON class (queue, turn) WHERE open = 0;

CREATE TABLE key (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX key_until ON key (until, queue);

-- Gates that running jobs use, rates ahead of their time, and gates with an operator's number (`given`). No others.
-- `tat`: the theoretical arrival time of a rate. `queue`: the one that used the gate last; its spec has the numbers.
-- `wake_at`: when a rate opens for the first of the lanes that are parked there.
CREATE TABLE gate (
    name TEXT PRIMARY KEY,
    used INTEGER NOT NULL,
    tat INTEGER NOT NULL,
    queue TEXT,
    given INTEGER,
    wake_at INTEGER
) WITHOUT ROWID;
CREATE INDEX gate_waking ON gate (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX gate_unused_rate ON gate (tat) WHERE used = 0 AND given IS NULL AND wake_at IS NULL;

-- The last settle of jobs that are gone, in two tables: when one is full, the other, older one is emptied at once.
CREATE TABLE removed_0 (id INTEGER PRIMARY KEY, delivery INTEGER NOT NULL, code TEXT NOT NULL);

CREATE TABLE removed_1 (id INTEGER PRIMARY KEY, delivery INTEGER NOT NULL, code TEXT NOT NULL);

-- `last_at` outlives a schedule that is dropped (`body` is then NULL): a tick fires once, for ever.
CREATE TABLE schedule (name TEXT PRIMARY KEY, body TEXT, last_at INTEGER) WITHOUT ROWID;

CREATE TABLE log_partition (
    place INTEGER PRIMARY KEY,
    log TEXT NOT NULL,
    number INTEGER NOT NULL,
    first INTEGER NOT NULL DEFAULT 0,
    next INTEGER NOT NULL DEFAULT 0,
    last_at INTEGER NOT NULL DEFAULT 0,
    UNIQUE (log, number)
);

CREATE TABLE log_entry (
    place INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    at INTEGER NOT NULL,
    key TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (place, entry)
) WITHOUT ROWID;

CREATE TABLE log_reader (
    place INTEGER NOT NULL,
    reader TEXT NOT NULL,
    entry INTEGER NOT NULL,
    lost INTEGER NOT NULL DEFAULT 0,
    seen_at INTEGER NOT NULL DEFAULT 0,
    member TEXT,
    epoch INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (place, reader)
) WITHOUT ROWID;

-- Workers that announced themselves (core.presence), each until its time is up; what they say is JSON.
CREATE TABLE worker (
    owner TEXT PRIMARY KEY,
    since INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    until INTEGER NOT NULL,
    body TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX worker_until ON worker (until);

-- The ledger: one record for every call that changed something, written in the transaction of the call.
-- `entry` is dense from 0, in the order of commits; `record` is a version byte and MessagePack (core.ledger).
CREATE TABLE ledger (entry INTEGER PRIMARY KEY, at INTEGER NOT NULL, record BLOB NOT NULL);

-- Checkpoints of sources that repeat themselves (store/protocol.py); `at`: when a source last moved.
CREATE TABLE source (
    source TEXT PRIMARY KEY,
    batch INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    digest BLOB NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX source_at ON source (at);

CREATE TABLE log_group (
    log TEXT NOT NULL,
    reader TEXT NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (log, reader)
) WITHOUT ROWID;

CREATE TABLE log_member (
    log TEXT NOT NULL,
    reader TEXT NOT NULL,
    member TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (log, reader, member)
) WITHOUT ROWID;
