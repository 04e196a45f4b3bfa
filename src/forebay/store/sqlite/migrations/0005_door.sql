-- Jobs of queues that shed are marked. Who waits or is ready among them, by age (the rowid) and by rank: nobody else
-- pays for these indexes.
ALTER TABLE job ADD COLUMN sheds INTEGER;
CREATE INDEX job_oldest ON job (queue) WHERE sheds = 1 AND state < 2;
CREATE INDEX job_lowest ON job (queue, rank) WHERE sheds = 1 AND state < 2;
