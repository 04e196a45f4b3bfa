-- Statements about jobs. States: 0 waiting, 1 ready, 2 running, 3 done, 4 dead, 5 cancelled.
-- INDEXED BY makes a poll fail loudly, rather than slowly, should its index ever be lost.

-- name: insert
-- A job at its birth: ready, waiting for its time, or parked at a gate.
INSERT INTO job (id, state, queue, cls, rank, due_at, max_attempts, enqueued_at, expires_at, priority, rank_base,
    rank_timed, merges, gate, gates, kind, tenant, subject, key, deadline, meta, body, cost, turns)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_plain
-- The same for the common case: what is left out has its default.
INSERT INTO job (id, state, queue, cls, rank, due_at, max_attempts, enqueued_at, rank_timed, kind, tenant, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: claim
-- The next jobs of one class become running.
UPDATE job
SET state = 2, attempt = attempt + 1, delivery = delivery + 1, owner = ?1, claimed_at = ?2, lease_until = ?3, merges = 0
WHERE id IN (
    SELECT id FROM job INDEXED BY job_ready
    WHERE state = 1 AND queue = ?4 AND cls = ?5
    ORDER BY rank, id LIMIT ?6
)
RETURNING {job}, rank;

-- name: pulse
-- What is next: to fall due, to expire, to be forgotten, a gate that may have room, too many dead.
SELECT
    (SELECT min(due_at) FROM job INDEXED BY job_due WHERE state = 0 AND gate IS NULL),
    (SELECT min(expires_at) FROM job INDEXED BY job_expiring WHERE expires_at IS NOT NULL AND state < 2),
    (SELECT min(kept_until) FROM job INDEXED BY job_kept WHERE kept_until IS NOT NULL),
    EXISTS (SELECT 1 FROM gate INDEXED BY gate_opened WHERE opened = 1),
    EXISTS (SELECT 1 FROM queue INDEXED BY queue_crowded WHERE dead > dead_most),
    (SELECT min(opens_at) FROM pace INDEXED BY pace_later WHERE open = 0 AND opens_at IS NOT NULL),
    EXISTS (SELECT 1 FROM pace INDEXED BY pace_open WHERE open = 1);

-- name: due
-- Waiting jobs whose time has come, oldest first.
SELECT id, queue, cls, state, rank, due_at, gates, gate FROM job INDEXED BY job_due
WHERE state = 0 AND gate IS NULL AND due_at <= ?1
ORDER BY due_at LIMIT ?2;

-- name: next_due
-- When the next waiting job falls due.
SELECT min(due_at) FROM job INDEXED BY job_due WHERE state = 0 AND gate IS NULL;

-- name: expired
-- Jobs that nobody claimed in time.
SELECT id, queue, cls, state, rank, due_at, gates, gate, attempt, errors, kind FROM job INDEXED BY job_expiring
WHERE expires_at IS NOT NULL AND state < 2 AND expires_at <= ?1
ORDER BY expires_at LIMIT ?2;

-- name: kept
-- Finished jobs whose time to be readable is over.
SELECT id, queue, cls, state, rank, due_at, gates, gate, settled_delivery, settled_code, kind,
    coalesce(home, queue)
FROM job INDEXED BY job_kept
WHERE kept_until IS NOT NULL AND kept_until <= ?1
ORDER BY kept_until LIMIT ?2;

-- name: finished
-- Jobs that ended in this state before an instant, oldest first.
SELECT id, queue, cls, state, rank, due_at, gates, gate, settled_delivery, settled_code, kind,
    coalesce(home, queue)
FROM job INDEXED BY job_finished
WHERE state > 2 AND state = ?1 AND finished_at < ?2
ORDER BY finished_at LIMIT ?3;

-- name: finished_in
-- The same, of those that lie in one queue.
SELECT id, queue, cls, state, rank, due_at, gates, gate, settled_delivery, settled_code, kind,
    coalesce(home, queue)
FROM job INDEXED BY job_ended
WHERE state > 2 AND queue = ?4 AND state = ?1 AND finished_at < ?2
ORDER BY finished_at LIMIT ?3;

-- name: crowded
-- Queues where more dead lie than they keep.
SELECT name FROM queue INDEXED BY queue_crowded WHERE dead > dead_most;

-- name: oldest_dead
-- The oldest of the dead that lie in a queue.
SELECT id, queue, cls, state, rank, due_at, gates, gate, settled_delivery, settled_code, kind,
    coalesce(home, queue)
FROM job INDEXED BY job_ended
WHERE state > 2 AND queue = ?1 AND state = 4
ORDER BY finished_at, id LIMIT ?2;

-- name: overdue
-- Leases past their time, oldest first.
SELECT {job} FROM job INDEXED BY job_lease
WHERE state = 2 AND lease_until <= ?1
ORDER BY lease_until LIMIT ?2;

-- name: next_lease
-- When the next lease runs out.
SELECT min(lease_until) FROM job INDEXED BY job_lease WHERE state = 2;

-- name: first_parked
-- Who gets the next slot of a gate without an order.
SELECT id, queue, cls, state, rank, due_at, gates, gate FROM job INDEXED BY job_parked
WHERE gate IS NOT NULL AND gate = ?1
ORDER BY rank, id LIMIT 1;

-- name: one
-- One job, as a move from state to state needs it.
SELECT id, queue, cls, state, rank, due_at, gates, gate FROM job WHERE id = ?;

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
WHERE id = ?1;

-- name: oldest
-- Who gives way first where the oldest do; as `expired` has them.
SELECT id, queue, cls, state, rank, due_at, gates, gate, attempt, errors, kind FROM job INDEXED BY job_oldest
WHERE sheds = 1 AND state < 2 AND queue = ?1
ORDER BY id LIMIT ?2;

-- name: lowest
-- The same where the last in rank do.
SELECT id, queue, cls, state, rank, due_at, gates, gate, attempt, errors, kind FROM job INDEXED BY job_lowest
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
SELECT id, queue, cls, state, rank, due_at, gates, gate, settled_delivery, settled_code, kind, delivery, attempt,
    enqueued_at, claimed_at, cancel_requested, coalesce(home, queue)
FROM job WHERE id IN (SELECT value FROM json_each(?1));

-- name: ack
-- Plain jobs whose leases are held are done and go.
DELETE FROM job
WHERE id IN (SELECT value FROM json_each(?1)) AND delivery = ?2 AND queue = ?3 AND state = 2 AND gates IS NULL
RETURNING id, kind, attempt, enqueued_at, due_at, claimed_at;

-- name: held
-- Those of these jobs that exist, as a settle needs them.
SELECT id, queue, cls, state, rank, due_at, gates, gate, settled_delivery, settled_code, delivery, attempt, errors,
    rank_base, rank_timed, lease_until, kind, enqueued_at, claimed_at
FROM job WHERE id IN (SELECT value FROM json_each(?1));

-- name: fences
-- Which of these jobs run, and their fences.
SELECT id, delivery FROM job WHERE state = 2 AND id IN (SELECT value FROM json_each(?1));

-- name: extend
-- New time for running jobs.
UPDATE job SET lease_until = ?2 WHERE id IN (SELECT value FROM json_each(?1));

-- name: pictures
-- Jobs as callers see them.
SELECT {job} FROM job WHERE id IN (SELECT value FROM json_each(?1));

-- name: make_ready
-- Waiting jobs become ready.
UPDATE job SET state = 1, gate = NULL WHERE id IN (SELECT value FROM json_each(?1));

-- name: park
-- A due job found a gate closed.
UPDATE job SET gate = ?2 WHERE id = ?1;

-- name: delete
-- Jobs are gone.
DELETE FROM job WHERE id IN (SELECT value FROM json_each(?1));

-- name: keep
-- A job ended and stays readable.
UPDATE job
SET state = ?2, finished_at = ?3, kept_until = ?4, result = ?5, settled_delivery = ?6, settled_code = ?7,
    owner = NULL, claimed_at = NULL, lease_until = NULL, gate = NULL, merges = 0
WHERE id = ?1;

-- name: die
-- A job goes to the dead letters, which may lie in another queue, and for a time.
UPDATE job
SET state = 4, queue = coalesce(?6, queue), home = CASE WHEN ?6 IS NOT NULL THEN queue END, kept_until = ?7,
    finished_at = ?2, errors = ?3, settled_delivery = coalesce(?4, settled_delivery),
    settled_code = coalesce(?5, settled_code), owner = NULL, claimed_at = NULL, lease_until = NULL, gate = NULL,
    merges = 0
WHERE id = ?1;

-- name: wait_again
-- A job that ran waits for its next time.
UPDATE job
SET state = 0, due_at = ?2, rank = ?3, attempt = ?4, errors = ?5, settled_delivery = ?6, settled_code = ?7,
    owner = NULL, claimed_at = NULL, lease_until = NULL
WHERE id = ?1;

-- name: ask_to_cancel
-- Holders will be told.
UPDATE job SET cancel_requested = 1 WHERE id IN (SELECT value FROM json_each(?1)) RETURNING owner;

-- name: asked
-- Running jobs of an owner whose end is requested.
SELECT id, delivery FROM job INDEXED BY job_asked WHERE cancel_requested = 1 AND state = 2 AND owner = ?1;

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
-- A dead job is home and due now, with all lives back; whoever redrives an expired job wants it to run all the same.
-- Due now: nobody leads, and the rank needs no more than this.
UPDATE job
SET state = 0, queue = coalesce(home, queue), home = NULL, kept_until = NULL, attempt = 0, finished_at = NULL,
    cancel_requested = 0, expires_at = NULL, due_at = ?2,
    rank = CASE WHEN rank_timed THEN rank_base + ?2 ELSE rank_base END
WHERE id = ?1;

-- name: remember_0
-- The last settle of a job that is gone.
INSERT OR REPLACE INTO removed_0 VALUES (?, ?, ?);

-- name: remember_1
-- The last settle of a job that is gone.
INSERT OR REPLACE INTO removed_1 VALUES (?, ?, ?);

-- name: forget_0
-- The older half is given up.
DELETE FROM removed_0;

-- name: forget_1
-- The older half is given up.
DELETE FROM removed_1;

-- name: removed
-- What is remembered of jobs that are gone.
SELECT id, delivery, code FROM removed_0 WHERE id IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT id, delivery, code FROM removed_1 WHERE id IN (SELECT value FROM json_each(?1));

-- name: key
-- What is remembered under an idempotency key, and until when.
SELECT job_id, digest, until FROM key WHERE queue = ?1 AND key = ?2;

-- name: remember_key
-- A key belongs to a job until its window ends.
INSERT OR REPLACE INTO key (queue, key, job_id, digest, until) VALUES (?, ?, ?, ?, ?);

-- name: keys_by_state
-- Keys that are taken by the state of their job, from one on; whether the job is there at all.
SELECT queue, key, EXISTS (SELECT 1 FROM job WHERE id = key.job_id) FROM key INDEXED BY key_until
WHERE until = ?1 AND (queue, key) > (?2, ?3) ORDER BY queue, key LIMIT ?4;

-- name: drop_key
-- A key is forgotten.
DELETE FROM key WHERE queue = ?1 AND key = ?2 RETURNING queue;

-- name: sweep_keys
-- Keys whose window has passed are forgotten, some at a time.
DELETE FROM key WHERE (queue, key) IN (
    SELECT queue, key FROM key INDEXED BY key_until WHERE until <= ?1 ORDER BY until LIMIT ?2
)
RETURNING queue;

-- name: page_end
-- How far one page looks.
SELECT id FROM job WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2;

-- name: page
-- Jobs that match, in the order of their ids.
SELECT {job} FROM job
WHERE id > ?1 AND id <= ?2
    AND (?3 IS NULL OR queue = ?3) AND (?4 IS NULL OR state = ?4) AND (?5 IS NULL OR kind = ?5)
    AND (?6 IS NULL OR tenant = ?6) AND (?7 IS NULL OR subject = ?7)
    AND (?8 IS NULL OR coalesce(json_extract(errors, '$[#-1][0]'), '') = 'forebay.Abandoned' = ?8)
ORDER BY id LIMIT ?9;

-- name: page_held
-- Running jobs that match: few, wherever their ids are, so the index of leases finds them.
SELECT {job} FROM job INDEXED BY job_lease
WHERE state = 2 AND lease_until > 0 AND id > ?1
    AND (?2 IS NULL OR queue = ?2) AND (?3 IS NULL OR kind = ?3) AND (?4 IS NULL OR tenant = ?4)
    AND (?5 IS NULL OR subject = ?5)
    AND (?6 IS NULL OR coalesce(json_extract(errors, '$[#-1][0]'), '') = 'forebay.Abandoned' = ?6)
ORDER BY id LIMIT ?7;

-- name: dead_end
-- How far one page looks among dead letters.
SELECT id FROM job INDEXED BY job_dead WHERE state = 4 AND id > ?1 ORDER BY id LIMIT 1 OFFSET ?2;

-- name: page_dead
-- Dead letters that match, however far apart they are.
SELECT {job} FROM job INDEXED BY job_dead
WHERE state = 4 AND id > ?1 AND id <= ?2
    AND (?3 IS NULL OR queue = ?3) AND state = ?4 AND (?5 IS NULL OR kind = ?5) AND (?6 IS NULL OR tenant = ?6)
    AND (?7 IS NULL OR subject = ?7)
    AND (?8 IS NULL OR coalesce(json_extract(errors, '$[#-1][0]'), '') = 'forebay.Abandoned' = ?8)
ORDER BY id LIMIT ?9;

-- name: any_after
-- Whether there is a job with a larger id.
SELECT EXISTS (SELECT 1 FROM job WHERE id > ?1);

-- name: oldest_plain
-- Since when the oldest ready job of a plain line has been claimable, if that is before the oldest of the others.
-- No job is due before the first job of the table was accepted, so neither leaders nor priorities are looked at.
SELECT due_at FROM job INDEXED BY job_ready
WHERE state = 1 AND queue = ?1 AND cls = '' AND rank = due_at
    AND rank >= (SELECT enqueued_at FROM job WHERE id = (SELECT min(id) FROM job)) AND rank < ?2
ORDER BY rank, id LIMIT 1;

-- name: oldest_odd
-- The same among jobs whose order is not that of their age, or that belong to a class.
SELECT min(due_at) FROM job INDEXED BY job_odd
WHERE state = 1 AND (rank <> due_at OR cls <> '') AND queue = ?1;
