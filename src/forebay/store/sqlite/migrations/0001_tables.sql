-- The whole state of a store. Instants are microseconds since 1970. States: 0 waiting, 1 ready, 2 running, 3 done,
-- 4 dead, 5 cancelled. Every poll has one partial index, which holds nothing but the rows that the poll may return.

-- One row. `dealers`: how many processes have begun to deal turns among classes, each by its number.
-- `half` and `filled`: which of the two tables of removed jobs is being filled, and how far.
-- `ledger_*`: the entries held and their bytes, and the rule that says whether there are any, how long and how many.
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    next_id INTEGER NOT NULL,
    next_join INTEGER NOT NULL,
    dealers INTEGER NOT NULL,
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
INSERT INTO head (one, next_id, next_join, dealers, last_at, half, filled) VALUES (1, 1, 1, 0, 0, 0, 0);

-- Small columns first: reading them of a row with a large payload then needs no further page.
-- `gate`: where it is parked. `merges`: newer work may still take its place.
-- `turns`: it has a gate that classes share. `sheds`: its queue sheds; only such jobs are in the indexes for shedding.
-- `home`: the queue of a dead job whose dead letter belongs to another one.
CREATE TABLE job (
    id INTEGER PRIMARY KEY,
    state INTEGER NOT NULL,
    queue TEXT NOT NULL,
    cls TEXT NOT NULL,
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
    gate TEXT,
    gates TEXT,
    kind TEXT NOT NULL,
    tenant TEXT,
    subject TEXT,
    key TEXT,
    deadline INTEGER,
    meta TEXT,
    body BLOB NOT NULL,
    errors TEXT,
    result BLOB,
    cost INTEGER NOT NULL DEFAULT 1,
    turns INTEGER NOT NULL DEFAULT 0,
    sheds INTEGER,
    home TEXT
);
CREATE INDEX job_ready ON job (queue, cls, rank) WHERE state = 1;
CREATE INDEX job_odd ON job (queue, due_at) WHERE state = 1 AND (rank <> due_at OR cls <> '');
CREATE INDEX job_due ON job (due_at) WHERE state = 0 AND gate IS NULL;
CREATE INDEX job_parked ON job (gate, rank) WHERE gate IS NOT NULL;
CREATE INDEX job_lease ON job (lease_until) WHERE state = 2;
CREATE INDEX job_asked ON job (owner) WHERE cancel_requested = 1 AND state = 2;
CREATE INDEX job_expiring ON job (expires_at) WHERE expires_at IS NOT NULL AND state < 2;
CREATE INDEX job_kept ON job (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX job_finished ON job (state, finished_at) WHERE state > 2;
CREATE INDEX job_dead ON job (state) WHERE state = 4;
CREATE INDEX job_fresh ON job (queue, subject) WHERE merges = 1;
CREATE INDEX job_paced ON job (gate, queue, rank) WHERE gate >= 'rate/' AND gate < 'rate0';
CREATE INDEX job_turns ON job (gate, queue, cls, rank) WHERE gate IS NOT NULL AND turns = 1;
CREATE INDEX job_oldest ON job (queue) WHERE sheds = 1 AND state < 2;
CREATE INDEX job_lowest ON job (queue, rank) WHERE sheds = 1 AND state < 2;
CREATE INDEX job_ended ON job (state, queue, finished_at) WHERE state > 2;

-- What holds up a queue, for people: who has been parked longest, and lines that a dead head blocks.
CREATE INDEX job_held_up ON job (queue, due_at) WHERE gate IS NOT NULL;

-- How far running jobs say they are. Rows of deliveries that have ended mean nothing, and are dropped in passing.
CREATE TABLE progress (
    id INTEGER PRIMARY KEY,
    delivery INTEGER NOT NULL,
    portion REAL NOT NULL,
    note TEXT NOT NULL,
    at INTEGER NOT NULL
);

-- A queue and how many jobs it has in each state. `classed`: ready jobs that belong to a class with a name.
-- `dead_most`: as the spec says; where more of them lie, the oldest are forgotten.
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
    classed INTEGER NOT NULL DEFAULT 0,
    keys INTEGER NOT NULL DEFAULT 0,
    dead_most INTEGER
) WITHOUT ROWID;
CREATE INDEX queue_crowded ON queue (name) WHERE dead > dead_most;

-- Classes that have ready jobs right now; `joined` tells a process which ones it has not seen yet.
CREATE TABLE class (
    queue TEXT NOT NULL,
    name TEXT NOT NULL,
    ready INTEGER NOT NULL,
    joined INTEGER NOT NULL,
    PRIMARY KEY (queue, name)
) WITHOUT ROWID;
CREATE INDEX class_joined ON class (queue, joined);
CREATE INDEX class_idle ON class (queue, name) WHERE ready <= 0;

CREATE TABLE key (
    queue TEXT NOT NULL,
    key TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    digest BLOB NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX key_until ON key (until, queue);

-- Gates that are held, waited at or lined up for, and the operators' own limits. A gate with a `step` is a rate: `tide`
-- is up to when its starts are paid for.
-- `fallen`: so many of those in its line are dead, and block it once they are its head.
CREATE TABLE gate (
    name TEXT PRIMARY KEY,
    slots INTEGER NOT NULL,
    held INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    standing INTEGER NOT NULL,
    opened INTEGER NOT NULL,
    step INTEGER NOT NULL DEFAULT 0,
    tide INTEGER NOT NULL DEFAULT 0,
    fallen INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX gate_opened ON gate (name) WHERE opened = 1;
CREATE INDEX gate_ebbed ON gate (tide) WHERE step > 0 AND parked = 0;
CREATE INDEX gate_fallen ON gate (name) WHERE fallen > 0;

CREATE TABLE gate_limit (name TEXT PRIMARY KEY, slots INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE line (gate TEXT NOT NULL, id INTEGER NOT NULL, PRIMARY KEY (gate, id)) WITHOUT ROWID;

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

-- How far sources that repeat themselves have come (store/feeding.py); `at`: when a source was last heard of.
CREATE TABLE feed (
    source TEXT PRIMARY KEY,
    batch INTEGER NOT NULL,
    taken INTEGER NOT NULL,
    digest BLOB NOT NULL,
    at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX feed_at ON feed (at);

-- A rate at which jobs of a queue are parked: who is first of them, and when it is let in (NULL: the rate is closed).
-- `open`: that time has come. Who is parked at a rate is let in by a claim of its queue alone. `cls`: who is first is of
-- that class.
CREATE TABLE pace (
    queue TEXT NOT NULL,
    gate TEXT NOT NULL,
    opens_at INTEGER,
    rank INTEGER NOT NULL,
    id INTEGER NOT NULL,
    open INTEGER NOT NULL,
    cls TEXT NOT NULL,
    PRIMARY KEY (queue, gate)
) WITHOUT ROWID;
CREATE INDEX pace_gate ON pace (gate);
CREATE INDEX pace_later ON pace (opens_at) WHERE open = 0 AND opens_at IS NOT NULL;
CREATE INDEX pace_next ON pace (queue, opens_at) WHERE open = 0 AND opens_at IS NOT NULL;
CREATE INDEX pace_open ON pace (queue, rank, id) WHERE open = 1;
CREATE INDEX pace_start ON pace (queue, cls, rank, id) WHERE open = 1;

-- Turns of classes at a gate that they share: who comes first in the ring, and how many it may still take in a turn that
-- has begun. `turns` of a job: it has such a gate.
CREATE TABLE turn (
    gate TEXT NOT NULL,
    queue TEXT NOT NULL,
    cls TEXT NOT NULL,
    place INTEGER NOT NULL,
    rest INTEGER NOT NULL,
    PRIMARY KEY (gate, queue, cls)
) WITHOUT ROWID;
CREATE INDEX turn_place ON turn (gate, queue, place);

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
