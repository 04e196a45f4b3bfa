"""The guards, and how each is broken. `tests` are what should notice, in as little time as possible."""

from dataclasses import dataclass

CONFORMANCE = ("tests/stores/test_conformance.py", "-k", "memory and not journaled and not sqlite")
CRASH = ("tests/stores/test_crash_points.py",)
GRAVES = ("tests/stores/test_conformance.py", "-k", "memory-dead_letter_queues")
HEAVY = ("tests/unit/test_roles.py", "-k", "costs or heavy")
MEMORY = "src/forebay/store/memory"
SCHEMA = "src/forebay/store/postgres/migrations"


@dataclass(frozen=True)
class Mutant:
    """One way to break a promise."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = [
    Mutant(
        "a promotion lets any number expire, in SQLite",
        "src/forebay/store/sqlite/leases.py",
        "    maintain(unit, limit, limit)\n",
        "    maintain(unit, limit)\n",
        ("tests/stores/test_conformance.py", "-k", "sqlite-timing"),
    ),
    Mutant(
        "what expires or is kept goes at the next second",
        f"{MEMORY}/index.py",
        "_GRAIN = 10_000\n",
        "_GRAIN = _SECOND\n",
        ("tests/stores/test_conformance.py", "-k", "memory-milliseconds"),
    ),
    Mutant(
        "a schedule that is put again drops its pending tick",
        "src/forebay/core/schedule.py",
        "keeps = same and not resumed and",
        "keeps = False and",
        ("tests/stores/test_conformance.py", "-k", "sqlite-schedules"),
    ),
    Mutant(
        "a schedule whose slot was taken stands still",
        "src/forebay/core/schedule.py",
        "keeps = same and not resumed and (last_at is None or known.next_at > last_at)",
        "keeps = same and not resumed",
        ("tests/stores/test_conformance.py", "-k", "sqlite-schedules"),
    ),
    Mutant(
        "chunks of a snapshot are cut by the number of items alone",
        f"{MEMORY}/image.py",
        "(len(batch) == _PER_CHUNK or size + len(encoded) > CHUNK_BYTES)",
        "len(batch) == _PER_CHUNK",
        ("tests/stores/test_journaled.py", "-k", "large_jobs"),
    ),
    Mutant(
        "a compaction takes all the room there is",
        f"{MEMORY}/journaled.py",
        "if free - size < RESERVE_BYTES:",
        "if free < size:",
        ("tests/stores/test_journaled.py", "-k", "finds_no_room"),
    ),
    Mutant(
        "a compaction that gives up leaves the ledger's records behind",
        f"{MEMORY}/journaled.py",
        "            writer.give_up()\n",
        "            pass\n",
        ("tests/stores/test_journaled.py", "-k", "finds_no_room"),
    ),
    Mutant(
        "a compaction fails only as was foreseen",
        f"{MEMORY}/journaled.py",
        "        except Exception as error:\n            # The log",
        "        except StoreFailed as error:\n            # The log",
        ("tests/stores/test_journaled.py", "-k", "logged_and_tried"),
    ),
    Mutant(
        "a failed compaction is tried again at once",
        f"{MEMORY}/journaled.py",
        "            self._not_before = time.monotonic() + wait\n",
        "",
        ("tests/stores/test_journaled.py", "-k", "logged_and_tried"),
    ),
    Mutant(
        "light jobs pass a heavy one",
        "src/forebay/work/claimer.py",
        "            self._reserved = slots_of(leases[count].job, size)\n",
        "            pass\n",
        HEAVY,
    ),
    Mutant(
        "a heavy job gives one slot back",
        "src/forebay/work/pool.py",
        "self._extra -= self._extra_slots.pop(fence, 0)",
        "self._extra_slots.pop(fence, 0)",
        ("tests/unit/test_pool.py::test_a_heavy_job_takes_as_many_slots_as_it_costs",),
    ),
    Mutant(
        "no fence",
        f"{MEMORY}/facts.py",
        "row.state is State.RUNNING and row.delivery == delivery else None",
        "row.state is State.RUNNING else None",
        CONFORMANCE,
    ),
    Mutant(
        "sqlite: no fence for an ack, under chaos",
        "src/forebay/store/sqlite/jobs.sql",
        "AND delivery = ?2 AND queue = ?3 AND state = 2",
        "AND delivery >= ?2 AND queue = ?3 AND state = 2",
        ("tests/process/test_chaos.py", "-k", "late_word"),
    ),
    Mutant(
        "attempt as fence",
        f"{MEMORY}/facts.py",
        "row.state is State.RUNNING and row.delivery == delivery else None",
        "row.state is State.RUNNING and row.attempt == delivery else None",
        CONFORMANCE,
    ),
    Mutant(
        "delivery starts anew at a redrive",
        f"{MEMORY}/changes.py",
        "        row.attempt = 0\n",
        "        row.attempt = 0\n        row.delivery = 0\n",
        CONFORMANCE,
    ),
    Mutant(
        "promoted before it is due",
        "src/forebay/core/stamp.py",
        "due_at <= now and line is None,",
        "due_at <= now + 1_000_000 and line is None,",
        CONFORMANCE,
    ),
    Mutant(
        "fsync skipped",
        f"{MEMORY}/journal.py",
        "        self._disk.sync(self._handle)\n        with self._guard:",
        "        with self._guard:",
        ("tests/unit/test_power_cuts.py",),
    ),
    Mutant(
        "acknowledged after a failed sync",
        f"{MEMORY}/journal.py",
        "        except OSError as error:\n            self._stop(str(error))\n",
        "        except OSError as error:\n",
        ("tests/unit/test_journal_failures.py",),
    ),
    Mutant(
        "verb does not wait for the disk",
        f"{MEMORY}/session.py",
        "        session.sync(lsn)\n        return answer\n",
        "        return answer\n",
        ("tests/stores/test_journaled.py",),
    ),
    Mutant(
        "a claim does not wait for the disk",
        f"{MEMORY}/jobs.py",
        "        session.sync(lsn)\n        return leases\n",
        "        return leases\n",
        ("tests/stores/test_journaled.py", "-k", "an_answer_holds"),
    ),
    Mutant(
        "a settle does not wait for the disk",
        f"{MEMORY}/jobs.py",
        "        session.sync(lsn)\n        return answers\n",
        "        return answers\n",
        ("tests/stores/test_journaled.py", "-k", "an_answer_holds"),
    ),
    Mutant(
        "dedup window ignored",
        "src/forebay/core/stamp.py",
        "if until >= MAX_INSTANT else until > now",
        "if until >= MAX_INSTANT else True",
        CONFORMANCE,
    ),
    Mutant(
        "capacity off by one",
        "src/forebay/engine/intake.py",
        "return depth + count - spec.capacity.limit if",
        "return depth + count - spec.capacity.limit - 1 if",
        CONFORMANCE,
    ),
    Mutant(
        "jitter lost",
        "src/forebay/core/backoff.py",
        "return int(draw * _doubled(self.base, self.cap, attempt))",
        "return _doubled(self.base, self.cap, attempt)",
        ("tests/unit/test_backoff.py",),
    ),
    Mutant(
        "backoff without a cap",
        "src/forebay/core/backoff.py",
        "return min(micros(cap), micros(base) << min(max(attempt, 0), 48))",
        "return micros(base) << min(max(attempt, 0), 48)",
        ("tests/unit/test_backoff.py",),
    ),
    Mutant(
        "one life too many",
        "src/forebay/core/decide.py",
        "attempts_left = job.attempt < job.max_attempts",
        "attempts_left = job.attempt <= job.max_attempts",
        ("tests/unit/test_decide.py",),
    ),
    Mutant(
        "a crash costs no life",
        "src/forebay/core/decide.py",
        "return Retry(0, _abandoned(job, cause), keep_rank=True, expired=expired)",
        "return Release(0)",
        ("tests/unit/test_decide.py",),
    ),
    Mutant(
        "a job taken back loses its rank",
        "src/forebay/core/decide.py",
        "return Retry(0, _abandoned(job, cause), keep_rank=True, expired=expired)",
        "return Retry(0, _abandoned(job, cause), expired=expired)",
        ("tests/stores/test_conformance.py", "-k", "memory-reclaiming"),
    ),
    Mutant(
        "a job taken back does not keep its rank",
        "src/forebay/engine/settle.py",
        "    if keep_rank:\n",
        "    if False:\n",
        ("tests/stores/test_conformance.py", "-k", "memory-reclaiming"),
    ),
    Mutant(
        "what is due waits behind the backlog",
        "src/forebay/core/stamp.py",
        "return base + due_at - LEAD if timed == LEADING and due_at > now else base + due_at",
        "return base + due_at",
        CONFORMANCE,
    ),
    Mutant(
        "who did not wait goes first too",
        "src/forebay/core/stamp.py",
        "if timed == LEADING and due_at > now else",
        "if timed == LEADING else",
        CONFORMANCE,
    ),
    Mutant(
        "a running job is merged into",
        f"{MEMORY}/index.py",
        "            if entry.merges:\n                self._forget_merge(row)\n",
        "",
        CONFORMANCE,
    ),
    Mutant(
        "nobody is woken by a job that is shed",
        f"{MEMORY}/changes.py",
        "Change.SHED: Rule(_shed, _unheld, ends=True),",
        "Change.SHED: Rule(_shed, _unheld),",
        ("tests/stores/test_conformance.py", "-k", "memory-watching"),
    ),
    Mutant(
        "a request to end a job is recorded again",
        f"{MEMORY}/jobs.py",
        "for job_id in plan.asked if not rows[job_id].cancel_requested]",
        "for job_id in plan.asked]",
        ("tests/stores/test_conformance.py", "-k", "journaled-ledger"),
    ),
    Mutant(
        "jobs that fail apart share the first error",
        "src/forebay/core/changeset.py",
        "if what != self._last:",
        "if what[:1] != self._last[:1]:",
        ("tests/unit/test_changeset.py", "-k", "neighbours"),
    ),
    Mutant(
        "an expired job is handed out",
        f"{MEMORY}/queue_state.py",
        "late = [row for row in rows if _expired(row, now)] if expiring else []",
        "late = list[Row]()",
        ("tests/stores/test_conformance.py", "-k", "memory-timing"),
    ),
    Mutant(
        "a slot is taken without compare-and-set",
        "src/forebay/engine/control.py",
        "        and schedule.next_at == tick\n",
        "",
        CONFORMANCE,
    ),
    Mutant(
        "a torn tail is cut although it was acknowledged",
        f"{MEMORY}/recovery.py",
        "self._acknowledged = max(decode_mark(mark) or 0, *claimed[-1:], 0)",
        "self._acknowledged = max(0, *claimed[-1:], 0)",
        CRASH,
    ),
    Mutant(
        "ids start anew after a restart",
        f"{MEMORY}/image.py",
        "facts.next_id, facts.last_at, facts.ledger = head",
        "facts.next_id, facts.last_at, facts.ledger = 1, *head[1:]",
        CRASH,
    ),
    Mutant(
        "segments are dropped before the snapshot",
        f"{MEMORY}/journaled.py",
        "self._unhurried(image(facts), 1)",
        "self._unhurried(iter(()), 1)",
        CRASH,
    ),
    Mutant(
        "a log reader skips trimmed entries silently",
        f"{MEMORY}/logs.py",
        "        if after + 1 < found.first:\n",
        "        if False:\n",
        CONFORMANCE,
    ),
    Mutant(
        "commits move back",
        f"{MEMORY}/logs.py",
        "position = offset if rewind else max(offset, self._logs.places.get((log, group, partition), -1))",
        "position = offset",
        CONFORMANCE,
    ),
    Mutant(
        "the dead stay where they died",
        f"{MEMORY}/changes.py",
        "    if rule is not None and rule.queue is not None:\n",
        "    if False:\n",
        GRAVES,
    ),
    Mutant(
        "a redrive does not send them home",
        f"{MEMORY}/changes.py",
        "expires_at=None, queue=row.queue)",
        "expires_at=None, queue=row.entry.queue)",
        GRAVES,
    ),
    Mutant(
        "dead letters are kept for ever",
        f"{MEMORY}/changes.py",
        "0 if rule is None else rule.kept_until",
        "0",
        GRAVES,
    ),
    Mutant(
        "nobody counts the dead",
        f"{MEMORY}/session.py",
        "        while index.crowded and limit > 0:\n",
        "        while False:\n",
        GRAVES,
    ),
    Mutant(
        "a redriven one is forgotten all the same",
        f"{MEMORY}/index.py",
        "        self.kept.remove(kept_until, row.entry.id)\n",
        "",
        GRAVES,
    ),
    Mutant(
        "a dead letter elsewhere still takes room at home, in tables",
        "src/forebay/store/sqlite/unit_of_work.py",
        "        unit.queues.moved(queue, lane, was, None, count)\n",
        "",
        ("tests/stores/test_conformance.py", "-k", "sqlite-dead_letter_queues"),
    ),
    Mutant(
        "a redrive goes on though all die again",
        "src/forebay/redrive.py",
        "if self.ended >= self.plan.stop_after and",
        "if False and",
        ("tests/unit/test_redrive.py",),
    ),
    Mutant(
        "NaN in a payload",
        "src/forebay/core/payload.py",
        "        if not isfinite(value):",
        "        if False:",
        ("tests/unit/test_payload.py",),
    ),
    Mutant(
        "a worker of many queues rests before it has asked all of them",
        "src/forebay/work/capacity.py",
        "        if self._empty < len(self._queues):\n            return False\n",
        "",
        ("tests/unit/test_rotation.py",),
    ),
    Mutant(
        "handlers that awaited are finished one by one",
        "src/forebay/work/loop.py",
        "self._loop.call_later(_GATHER, self._flush_gathered)",
        "self._flush_gathered()",
        ("tests/unit/test_pool.py", "-k", "finished_together"),
    ),
]
