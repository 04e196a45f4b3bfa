-- Dead letters that lie elsewhere, how long and how many of them (core.policy.DeadLetters).

-- `home`: the queue that a dead job died in, where it lies in another one.
ALTER TABLE job ADD COLUMN home TEXT;
CREATE INDEX job_ended ON job (state, queue, finished_at) WHERE state > 2;

-- `dead_most`: as the spec says; where more of them lie, the oldest are forgotten.
ALTER TABLE queue ADD COLUMN dead_most INTEGER;
CREATE INDEX queue_crowded ON queue (name) WHERE dead > dead_most;
