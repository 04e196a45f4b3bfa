-- Costs, and rates: a gate with a `step` lets in by time. `tide`: up to when its starts are paid for.
ALTER TABLE job ADD COLUMN cost INTEGER NOT NULL DEFAULT 1;
ALTER TABLE gate ADD COLUMN step INTEGER NOT NULL DEFAULT 0;
ALTER TABLE gate ADD COLUMN tide INTEGER NOT NULL DEFAULT 0;
CREATE INDEX gate_ebbed ON gate (tide) WHERE step > 0 AND parked = 0;

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
CREATE INDEX job_paced ON job (gate, queue, rank) WHERE gate >= 'rate/' AND gate < 'rate0';
CREATE INDEX pace_start ON pace (queue, cls, rank, id) WHERE open = 1;
CREATE INDEX class_idle ON class (queue, name) WHERE ready <= 0;

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
ALTER TABLE job ADD COLUMN turns INTEGER NOT NULL DEFAULT 0;
CREATE INDEX job_turns ON job (gate, queue, cls, rank) WHERE gate IS NOT NULL AND turns = 1;
