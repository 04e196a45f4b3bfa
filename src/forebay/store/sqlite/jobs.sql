-- Statements about jobs. States: 0 waiting, 1 ready, 2 running, 3 done, 4 dead, 5 cancelled.
-- INDEXED BY makes a poll fail loudly, rather than slowly, should its index ever be lost.

-- name: insert
-- A new job: ready, waiting for its time, or behind the head of its line.
INSERT INTO job (id, state, queue, lane, rank, due_at, max_attempts, enqueued_at, rank_timed, kind, tenant, body,
    expires_at, priority, rank_base, merges, line, blocks, behind, cost, subject, key, deadline, meta)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_plain
-- The same for the common case: what is left out has its default. The columns are the first of those above.
INSERT INTO job (id, state, queue, lane, rank, due_at, max_attempts, enqueued_at, rank_timed, kind, tenant, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: claim
-- The next jobs of one lane become running.
UPDATE job
SET state = 2, attempt = attempt + 1, delivery = delivery + 1, owner = ?1, claimed_at = ?2, lease_until = ?3, merges = 0
WHERE id IN (
    SELECT id FROM job INDEXED BY job_ready
    WHERE state = 1 AND queue = ?4 AND lane = ?5
    ORDER BY rank, id LIMIT ?6
)
RETURNING {job}, rank;

-- name: claim_these
-- Jobs that were chosen from several lanes become running.
UPDATE job
SET state = 2, attempt = attempt + 1, delivery = delivery + 1, owner = ?1, claimed_at = ?2, lease_until = ?3, merges = 0
WHERE id IN (SELECT value FROM json_each(?4))
RETURNING {job};

-- name: next_of_lane
-- The ready jobs of a lane behind a rank and id, in order.
SELECT rank, id, cost FROM job INDEXED BY job_ready
WHERE state = 1 AND queue = ?1 AND lane = ?2 AND rank >= ?3 AND (rank, id) > (?3, ?4)
ORDER BY rank, id LIMIT ?5;

-- name: jobs_of_lanes
-- The first ready jobs of each of these lanes, up to a limit.
SELECT l.value, j.rank, j.id, j.cost FROM json_each(?1) AS l CROSS JOIN job AS j ON j.id IN (
    SELECT id FROM job INDEXED BY job_ready
    WHERE state = 1 AND queue = ?2 AND lane = l.value
    ORDER BY rank, id LIMIT ?3
);

-- name: first_of_lanes
-- The first ready job of each of these lanes.
SELECT l.value ->> 'queue', l.value ->> 'lane', j.rank, j.id
FROM json_each(?1) AS l LEFT JOIN job AS j ON j.id = (
    SELECT id FROM job INDEXED BY job_ready
    WHERE state = 1 AND queue = l.value ->> 'queue' AND lane = l.value ->> 'lane'
    ORDER BY rank, id LIMIT 1
);

-- name: next_maintenance
-- When maintenance is needed next: a job falls due, expires or leaves its retention, a rate opens, a queue has too many dead.
SELECT
    (SELECT min(due_at) FROM job INDEXED BY job_due WHERE state = 0 AND behind = 0),
    (SELECT min(expires_at) FROM job INDEXED BY job_expiring WHERE expires_at IS NOT NULL AND state < 2),
    (SELECT min(kept_until) FROM job INDEXED BY job_kept WHERE kept_until IS NOT NULL),
    (SELECT min(wake_at) FROM gate INDEXED BY gate_waking WHERE wake_at IS NOT NULL),
    EXISTS (SELECT 1 FROM queue INDEXED BY queue_over_dead_limit WHERE dead > max_dead);

-- name: make_ready
-- Waiting jobs whose time has come become ready, oldest first.
UPDATE job SET state = 1 WHERE id IN (
    SELECT id FROM job INDEXED BY job_due WHERE state = 0 AND behind = 0 AND due_at <= ?1 ORDER BY due_at LIMIT ?2
)
RETURNING queue, lane, rank, id;

-- name: expose
-- Jobs that are not behind others any more wait for nothing but their time, and are ready if it has come.
UPDATE job SET behind = 0, state = due_at <= ?2 WHERE id IN (SELECT value FROM json_each(?1))
RETURNING queue, lane, rank, id, state;

-- name: taken_lines
-- Those of these lines in which a new job is not the first.
SELECT l.value FROM json_each(?1) AS l
WHERE EXISTS (SELECT 1 FROM job INDEXED BY job_line WHERE line = l.value AND {in_line});

-- name: heads
-- The heads of these lines.
SELECT line, id, state, behind, queue, lane FROM job WHERE id IN (
    SELECT (SELECT min(id) FROM job INDEXED BY job_line WHERE line = l.value AND {in_line}) FROM json_each(?1) AS l
);

-- name: exposed
-- The job of a line that is exposed.
SELECT line, id, state, behind, queue, lane FROM job INDEXED BY job_line
WHERE line = ?1 AND {in_line} AND behind = 0 AND state < 3 LIMIT 1;

-- name: step_back
-- Jobs that were exposed wait behind the heads of their lines.
UPDATE job SET behind = 1, state = 0 WHERE id IN (SELECT value FROM json_each(?1));

-- name: between
-- Unfinished jobs of a line between two of it, up to a limit.
SELECT id FROM job INDEXED BY job_line WHERE line = ?1 AND {in_line} AND state < 3 AND id > ?2 AND id < ?3 LIMIT ?4;

-- name: next_due
-- When the next waiting job falls due.
SELECT min(due_at) FROM job INDEXED BY job_due WHERE state = 0 AND behind = 0;

-- name: expired
-- Jobs that were not claimed in time.
SELECT {row}, errors FROM job INDEXED BY job_expiring
WHERE expires_at IS NOT NULL AND state < 2 AND expires_at <= ?1
ORDER BY expires_at LIMIT ?2;

-- name: kept
-- Finished jobs whose time to be readable is over.
SELECT {row} FROM job INDEXED BY job_kept
WHERE kept_until IS NOT NULL AND kept_until <= ?1
ORDER BY kept_until LIMIT ?2;

-- name: finished
-- Jobs that ended in this state before an instant, oldest first.
SELECT {row} FROM job INDEXED BY job_finished
WHERE state > 2 AND state = ?1 AND finished_at < ?2
ORDER BY finished_at LIMIT ?3;

-- name: finished_in
-- The same, of those in one queue.
SELECT {row} FROM job INDEXED BY job_ended
WHERE state > 2 AND queue = ?4 AND state = ?1 AND finished_at < ?2
ORDER BY finished_at LIMIT ?3;

-- name: queues_over_dead_limit
-- Queues with more dead letters than they keep.
SELECT name FROM queue INDEXED BY queue_over_dead_limit WHERE dead > max_dead;

-- name: oldest_dead
-- The oldest dead letters of a queue.
SELECT {row} FROM job INDEXED BY job_ended
WHERE state > 2 AND queue = ?1 AND state = 4
ORDER BY finished_at, id LIMIT ?2;

-- name: overdue
-- Leases that have ended, oldest first.
SELECT {job} FROM job INDEXED BY job_lease
WHERE state = 2 AND lease_until <= ?1
ORDER BY lease_until LIMIT ?2;

-- name: next_lease
-- When the next lease ends.
SELECT min(lease_until) FROM job INDEXED BY job_lease WHERE state = 2;

-- name: one
-- One job, as a move from state to state needs it.
SELECT {row} FROM job WHERE id = ?;

-- name: fresh
-- The job that newer work of its subject may replace.
SELECT id, enqueued_at, due_at, rank_timed FROM job INDEXED BY job_fresh
WHERE merges = 1 AND queue = ?1 AND subject = ?2 AND (expires_at IS NULL OR expires_at > ?3)
ORDER BY id DESC LIMIT 1;

-- name: merge
-- A waiting job takes over newer work and its urgency; its time moves if there is another one.
UPDATE job
SET kind = ?2, body = ?3, meta = ?4, priority = ?5, rank_base = ?6, deadline = ?7, expires_at = ?8,
    due_at = coalesce(?9, due_at), rank = coalesce(?10, rank + ?6 - rank_base)
WHERE id = ?1
RETURNING queue, lane, state;

-- name: oldest
-- The oldest jobs of a queue that sheds these first; the columns of `expired`.
SELECT {row}, errors FROM job INDEXED BY job_oldest
WHERE sheds = 1 AND state < 2 AND queue = ?1
ORDER BY id LIMIT ?2;

-- name: lowest
-- The same of a queue that sheds the last in rank first.
SELECT {row}, errors FROM job INDEXED BY job_lowest
WHERE sheds = 1 AND state < 2 AND queue = ?1
ORDER BY rank DESC, id DESC LIMIT ?2;

-- name: mark_sheds
-- New jobs of queues that shed.
UPDATE job SET sheds = 1 WHERE id IN (SELECT value FROM json_each(?1));

-- name: mark_all_sheds
-- All jobs of a queue that begins to shed.
UPDATE job SET sheds = 1 WHERE queue = ?1 AND sheds IS NULL;

-- name: move
-- Those of these jobs that exist, as a move from state to state needs them.
SELECT {row} FROM job WHERE id IN (SELECT value FROM json_each(?1));

-- name: dead_of
-- Those of these jobs that are dead.
SELECT {row} FROM job WHERE id IN (SELECT value FROM json_each(?1)) AND state = 4;

-- name: ack
-- Jobs whose leases are held are done, and deleted.
DELETE FROM job
WHERE id IN (SELECT value FROM json_each(?1)) AND delivery = ?2 AND queue = ?3 AND state = 2
RETURNING id, queue, kind, delivery, attempt, enqueued_at, due_at, claimed_at, lane, cost, line;

-- name: held
-- The same with their failures, as a settle needs them.
SELECT {row}, errors FROM job WHERE id IN (SELECT value FROM json_each(?1));

-- name: fences
-- Which of these jobs run, and their fences.
SELECT id, delivery FROM job WHERE state = 2 AND id IN (SELECT value FROM json_each(?1));

-- name: extend
-- The leases of running jobs end later.
UPDATE job SET lease_until = ?2 WHERE id IN (SELECT value FROM json_each(?1));

-- name: jobs_by_id
-- Jobs as callers see them.
SELECT {job} FROM job WHERE id IN (SELECT value FROM json_each(?1));

-- name: delete
-- Jobs are deleted.
DELETE FROM job WHERE id IN (SELECT value FROM json_each(?1));

-- name: keep
-- A job ended and stays readable.
UPDATE job
SET state = ?2, finished_at = ?3, kept_until = ?4, result = ?5, settled_delivery = ?6, settled_code = ?7,
    owner = NULL, claimed_at = NULL, lease_until = NULL, merges = 0
WHERE id = ?1;

-- name: dead_letter
-- A job becomes a dead letter, perhaps in another queue, and perhaps with an end of its retention.
UPDATE job
SET state = 4, queue = coalesce(?6, queue), home = CASE WHEN ?6 IS NOT NULL THEN queue END, kept_until = ?7,
    finished_at = ?2, errors = ?3, settled_delivery = coalesce(?4, settled_delivery),
    settled_code = coalesce(?5, settled_code), owner = NULL, claimed_at = NULL, lease_until = NULL, merges = 0
WHERE id = ?1;

-- name: wait_again
-- A job that ran waits for its next time; in a line, until it is seen whether it is the head.
UPDATE job
SET state = 0, due_at = ?2, rank = ?3, attempt = ?4, errors = ?5, settled_delivery = ?6, settled_code = ?7,
    owner = NULL, claimed_at = NULL, lease_until = NULL, behind = line IS NOT NULL
WHERE id = ?1;

-- name: request_cancel
-- The cancellation of running jobs is requested; their owners are to be notified.
UPDATE job SET cancel_requested = 1 WHERE id IN (SELECT value FROM json_each(?1)) RETURNING owner;

-- name: cancel_requested
-- Running jobs of an owner whose cancellation is requested.
SELECT id, delivery FROM job INDEXED BY job_cancel_requested WHERE cancel_requested = 1 AND state = 2 AND owner = ?1;

-- name: report
-- How far a running job is, of the delivery that its holder has.
INSERT OR REPLACE INTO progress (id, delivery, portion, note, at)
SELECT id, delivery, ?3, ?4, ?5 FROM job WHERE id = ?1 AND delivery = ?2 AND state = 2
RETURNING id;

-- name: drop_reports
-- Reports of deliveries that have ended.
DELETE FROM progress WHERE NOT EXISTS (
    SELECT 1 FROM job WHERE job.id = progress.id AND job.delivery = progress.delivery AND job.state = 2
);

-- name: reports
-- What is reported of these jobs.
SELECT id, delivery, portion, note, at FROM progress WHERE id IN (SELECT value FROM json_each(?1));

-- name: unfinished
-- Those of these jobs that have not ended.
SELECT id FROM job WHERE id IN (SELECT value FROM json_each(?1)) AND state <= 2;

-- name: redrive
-- A dead job returns to its own queue, due now, with all attempts; a redriven job no longer expires.
-- It is due now, so it does not lead, and its rank is its base. In a line it waits until its head is known.
UPDATE job
SET state = 0, queue = coalesce(home, queue), home = NULL, kept_until = NULL, attempt = 0, finished_at = NULL,
    cancel_requested = 0, expires_at = NULL, due_at = ?2, behind = line IS NOT NULL,
    rank = CASE WHEN rank_timed THEN rank_base + ?2 ELSE rank_base END
WHERE id = ?1;

-- name: store_settles_0
-- The last settle of a job that is deleted.
INSERT OR REPLACE INTO removed_0 (id, delivery, code) VALUES (?, ?, ?);

-- name: store_settles_1
-- The last settle of a job that is deleted.
INSERT OR REPLACE INTO removed_1 (id, delivery, code) VALUES (?, ?, ?);

-- name: drop_settles_0
-- The older half is deleted.
DELETE FROM removed_0;

-- name: drop_settles_1
-- The older half is deleted.
DELETE FROM removed_1;

-- name: removed
-- The last settles of jobs that are deleted.
SELECT id, delivery, code FROM removed_0 WHERE id IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT id, delivery, code FROM removed_1 WHERE id IN (SELECT value FROM json_each(?1));

-- name: key
-- What is stored for an idempotency key, and until when.
SELECT job_id, digest, until FROM key WHERE queue = ?1 AND key = ?2;

-- name: store_key
-- A key belongs to a job until its window ends.
INSERT OR REPLACE INTO key (queue, key, job_id, digest, until) VALUES (?, ?, ?, ?, ?);

-- name: keys_by_state
-- Keys that are taken by the state of their job, from one on; whether the job is there at all.
SELECT queue, key, EXISTS (SELECT 1 FROM job WHERE id = key.job_id) FROM key INDEXED BY key_until
WHERE until = ?1 AND (queue, key) > (?2, ?3) ORDER BY queue, key LIMIT ?4;

-- name: drop_key
-- Delete a key.
DELETE FROM key WHERE queue = ?1 AND key = ?2 RETURNING queue;

-- name: sweep_keys
-- Delete keys whose window has passed, some at a time.
DELETE FROM key WHERE (queue, key) IN (
    SELECT queue, key FROM key INDEXED BY key_until WHERE until <= ?1 ORDER BY until LIMIT ?2
)
RETURNING queue;

-- name: page_end
-- The last job that one page reads.
SELECT id FROM job WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2;

-- name: page
-- Jobs that match, in the order of their ids.
SELECT {job} FROM job
WHERE id > ?1 AND id <= ?2
    AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR state = ?4) AND (?5 IS NULL OR kind = ?5)
    AND (?6 IS NULL OR tenant = ?6) AND (?7 IS NULL OR subject = ?7)
    AND (?8 IS NULL OR {abandoned} = ?8)
ORDER BY id LIMIT ?9;

-- name: page_held
-- Running jobs that match: few, wherever their ids are, so the index of leases finds them.
SELECT {job} FROM job INDEXED BY job_lease
WHERE state = 2 AND lease_until > 0 AND id > ?1
    AND (?2 IS NULL OR queue = ?2) AND (?3 IS NULL OR kind = ?3) AND (?4 IS NULL OR tenant = ?4)
    AND (?5 IS NULL OR subject = ?5)
    AND (?6 IS NULL OR {abandoned} = ?6)
ORDER BY id LIMIT ?7;

-- name: dead_end
-- The last dead letter that one page reads.
SELECT id FROM job INDEXED BY job_dead WHERE state = 4 AND id > ?1 ORDER BY id LIMIT 1 OFFSET ?2;

-- name: page_dead
-- Dead letters that match, however far apart they are.
SELECT {job} FROM job INDEXED BY job_dead
WHERE state = 4 AND id > ?1 AND id <= ?2
    AND (?3 IS NULL OR queue = ?3) AND state = ?4 AND (?5 IS NULL OR kind = ?5) AND (?6 IS NULL OR tenant = ?6)
    AND (?7 IS NULL OR subject = ?7)
    AND (?8 IS NULL OR {abandoned} = ?8)
ORDER BY id LIMIT ?9;

-- name: any_after
-- Whether there is a job with a larger id.
SELECT EXISTS (SELECT 1 FROM job WHERE id > ?1);

-- name: oldest_plain
-- Since when the oldest ready job of the plain lane has been due, if that is before the oldest of the others.
-- No job is due before the first job of the table was accepted, so neither leaders nor priorities are read.
SELECT due_at FROM job INDEXED BY job_ready
WHERE state = 1 AND queue = ?1 AND lane = '' AND rank = due_at
    AND rank >= (SELECT enqueued_at FROM job WHERE id = (SELECT min(id) FROM job)) AND rank < ?2
ORDER BY rank, id LIMIT 1;

-- name: oldest_not_by_age
-- The same among jobs whose order is not that of their age, or that have a lane of their own.
SELECT min(due_at) FROM job INDEXED BY job_not_by_age
WHERE state = 1 AND (rank <> due_at OR lane <> '') AND queue = ?1;
