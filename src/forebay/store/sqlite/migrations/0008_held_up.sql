-- What holds up a queue, for people: who has been parked longest, and lines that a dead head blocks.
CREATE INDEX job_held_up ON job (queue, due_at) WHERE gate IS NOT NULL;

-- `fallen`: so many of those in its line are dead, and block it once they are its head.
ALTER TABLE gate ADD COLUMN fallen INTEGER NOT NULL DEFAULT 0;
UPDATE gate SET fallen = (
    SELECT count(*) FROM line JOIN job ON job.id = line.id WHERE line.gate = gate.name AND job.state = 4
)
WHERE standing > 0;
CREATE INDEX gate_fallen ON gate (name) WHERE fallen > 0;
