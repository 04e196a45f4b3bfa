"""The guards, and how each is broken. `tests` are what should notice, in as little time as possible."""

from dataclasses import dataclass

CONFORMANCE = ("tests/stores/test_conformance.py", "-k", "memory and not journaled and not sqlite")
CRASH = ("tests/stores/test_crash_points.py",)
GRAVES = ("tests/stores/test_conformance.py", "-k", "memory-graves")
SQLITE = ("tests/stores/test_conformance.py", "-k", "sqlite and (lines or gates)")
HOLDUPS = ("tests/stores/test_conformance.py", "-k", "holdups and (memory or sqlite)")
HEAVY = ("tests/unit/test_roles.py", "-k", "costs or heavy")
SQLITE_PACED = ("tests/stores/test_conformance.py", "-k", "sqlite-costs or sqlite-rates")
PACED = ("tests/stores/test_conformance.py", "-k", "memory-costs or memory-rates")
MEMORY = "src/forebay/store/memory"
GATING = "src/forebay/store/gating.py"
PLACES = "src/forebay/store/places.py"


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
        "the dead in a line are counted when they live again",
        GATING,
        "                else:\n                    place.fallen -= 1\n",
        "",
        ("tests/stores/test_sqlite.py", "-k", "dead_that_stand"),
    ),
    Mutant(
        "who dies in line is not counted",
        GATING,
        "self._place(gate).fallen += 1",
        "pass",
        HOLDUPS,
    ),
    Mutant(
        "a parked job that dies elsewhere is looked for there",
        f"{MEMORY}/paces.py",
        "queue = self._queues[row.queue]",
        "queue = self._queues[row.entry.queue]",
        HOLDUPS,
    ),
    Mutant(
        "light jobs pass a heavy one",
        "src/forebay/work/claimer.py",
        "            self._owed = weight(leases[count].job, size)\n",
        "            pass\n",
        HEAVY,
    ),
    Mutant(
        "a heavy job gives one slot back",
        "src/forebay/work/pool.py",
        "self._extra -= self._heavy.pop(fence, 0)",
        "self._heavy.pop(fence, 0)",
        ("tests/unit/test_pool.py::test_a_heavy_job_takes_as_many_slots_as_it_costs",),
    ),
    Mutant(
        "no fence",
        f"{MEMORY}/jobs.py",
        "if row is None or row.state is not State.RUNNING or row.delivery != lease.job.delivery:",
        "if row is None or row.state is not State.RUNNING:",
        CONFORMANCE,
    ),
    Mutant(
        "sqlite: no fence for an ack, under chaos",
        "src/forebay/store/sqlite/jobs.sql",
        "AND delivery = ?2 AND queue = ?3 AND state = 2 AND gates IS NULL",
        "AND delivery >= ?2 AND queue = ?3 AND state = 2 AND gates IS NULL",
        ("tests/process/test_chaos.py", "-k", "late_word"),
    ),
    Mutant(
        "attempt as fence",
        f"{MEMORY}/jobs.py",
        "row.delivery != lease.job.delivery:",
        "row.attempt != lease.job.attempt:",
        CONFORMANCE,
    ),
    Mutant(
        "delivery starts anew at a redrive",
        f"{MEMORY}/facts.py",
        "            row.attempt = 0\n",
        "            row.attempt = 0\n            row.delivery = 0\n",
        CONFORMANCE,
    ),
    Mutant(
        "promoted before it is due",
        f"{MEMORY}/index.py",
        "if row is not None and row.due_at <= now:",
        "if row is not None and row.due_at <= now + 1_000_000:",
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
        f"{MEMORY}/engine.py",
        "            self._recorder.sync(lsn)",
        "            pass",
        ("tests/stores/test_journaled.py",),
    ),
    Mutant(
        "dedup window ignored",
        "src/forebay/core/stamp.py",
        "if until >= INSTANT_MOST else until > now",
        "if until >= INSTANT_MOST else True",
        CONFORMANCE,
    ),
    Mutant(
        "duplicates inside one batch",
        f"{MEMORY}/intake.py",
        "fact = keys.get(name)\n",
        "fact: KeyFact | None = None\n",
        CONFORMANCE,
    ),
    Mutant(
        "key conflict unnoticed",
        f"{MEMORY}/intake.py",
        "if fact[1] != key_digest:",
        "if False:",
        CONFORMANCE,
    ),
    Mutant(
        "capacity off by one",
        f"{MEMORY}/intake.py",
        "excess = count - line.room",
        "excess = count - line.room - 1",
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
        "release charges an attempt",
        f"{MEMORY}/facts.py",
        "        row.attempt -= 1\n",
        "",
        CONFORMANCE,
    ),
    Mutant(
        "one life too many",
        "src/forebay/core/decide.py",
        "lives_left = job.attempt < job.max_attempts",
        "lives_left = job.attempt <= job.max_attempts",
        ("tests/unit/test_decide.py",),
    ),
    Mutant(
        "a crash costs no life",
        "src/forebay/core/decide.py",
        "return Retry(0, LEASE_RAN_OUT, keep_rank=True)",
        "return Release(0)",
        ("tests/unit/test_decide.py",),
    ),
    Mutant(
        "a job taken back loses its rank",
        "src/forebay/core/decide.py",
        "return Retry(0, LEASE_RAN_OUT, keep_rank=True)",
        "return Retry(0, LEASE_RAN_OUT)",
        ("tests/stores/test_conformance.py", "-k", "memory-taking_back"),
    ),
    Mutant(
        "the store does not keep the rank of a job taken back",
        f"{MEMORY}/facts.py",
        "if ending.keep_rank:",
        "if False:",
        ("tests/stores/test_conformance.py", "-k", "memory-taking_back"),
    ),
    Mutant(
        "sqlite does not keep the rank of a job taken back",
        "src/forebay/store/sqlite/settling.py",
        "rank = columns[4] if keep_rank else rank_at(",
        "rank = rank_at(",
        ("tests/stores/test_conformance.py", "-k", "sqlite-taking_back"),
    ),
    Mutant(
        "parked jobs get the slot of a job taken back",
        "src/forebay/store/sqlite/tend.py",
        "    ready = tried = 0\n    if due_at is not None",
        "    ready, tried = open_gates(turn, limit)\n    if due_at is not None",
        ("tests/stores/test_conformance.py", "-k", "sqlite-taking_back"),
    ),
    Mutant(
        "order broken by a retry",
        f"{MEMORY}/gates.py",
        "return self._has_room(gate.name, place) and place.line.peek() is row",
        "return self._has_room(gate.name, place)",
        CONFORMANCE,
    ),
    Mutant(
        "what is due waits behind the backlog",
        "src/forebay/core/rank.py",
        "return base + due_at - LEAD if timed == LEADING and due_at > now else base + due_at",
        "return base + due_at",
        CONFORMANCE,
    ),
    Mutant(
        "who did not wait goes first too",
        "src/forebay/core/rank.py",
        "if timed == LEADING and due_at > now else",
        "if timed == LEADING else",
        CONFORMANCE,
    ),
    Mutant(
        "an operator's number lets two of a line run",
        f"{MEMORY}/gates.py",
        "return slots if place.line is None else min(slots, 1)",
        "return slots",
        CONFORMANCE,
    ),
    Mutant(
        "an operator's number lets two of a line run, in tables",
        PLACES,
        "return min(slots, 1) if self.standing else slots",
        "return slots",
        SQLITE,
    ),
    Mutant(
        "order broken by a retry, in tables",
        GATING,
        "return place.has_room() and self._head(place) == row.id",
        "return place.has_room()",
        SQLITE,
    ),
    Mutant(
        "a small job passes a dear one",
        f"{MEMORY}/gates.py",
        "(its_turn or not self._passes(gate, place, row, starts))",
        "True",
        PACED,
    ),
    Mutant(
        "a small job passes a dear one, in tables",
        GATING,
        " and (its_turn or not self._passes(row, gate, place, starts))",
        "",
        SQLITE_PACED,
    ),
    Mutant(
        "an idle rate saves up ready jobs",
        f"{MEMORY}/gates.py",
        "open_now = starts and self._opens_at",
        "open_now = self._opens_at",
        PACED,
    ),
    Mutant(
        "an idle rate saves up ready jobs, in tables",
        GATING,
        "if gate.step and not (starts and place.opens_at",
        "if gate.step and not (place.opens_at",
        SQLITE_PACED,
    ),
    Mutant(
        "a start of a rate is free",
        "src/forebay/core/gate.py",
        "return max(tide, now) + gate.cost * gate.step",
        "return max(tide, now)",
        PACED,
    ),
    Mutant(
        "a dear job gives one slot back",
        f"{MEMORY}/gates.py",
        "place.held -= gate.cost",
        "place.held -= 1",
        PACED,
    ),
    Mutant(
        "a gate is not written back",
        GATING,
        "            self._tables.put(used)\n",
        "            pass\n",
        SQLITE,
    ),
    Mutant(
        "a slot leaks at a dead letter",
        f"{MEMORY}/index.py",
        "        if entry.gates:\n            self.gates.release(row)\n        line = self._home(row)",
        "        if entry.gates and row.state is not State.DEAD:\n            self.gates.release(row)\n"
        "        line = self._home(row)",
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
        "a repeated settle is stale",
        f"{MEMORY}/jobs.py",
        "return Settled.APPLIED if last ==",
        "return Settled.STALE if last ==",
        CONFORMANCE,
    ),
    Mutant(
        "an expired job is handed out",
        f"{MEMORY}/jobs.py",
        "        if self._index.expiring.instants:\n            rows = self._without_expired(line, want, rows, now)\n",
        "",
        CONFORMANCE,
    ),
    Mutant(
        "a tick fires twice",
        f"{MEMORY}/queues.py",
        "schedule.next_at == tick and tick > last and",
        "schedule.next_at == tick and",
        CONFORMANCE,
    ),
    Mutant(
        "a slot is taken without compare-and-set",
        f"{MEMORY}/queues.py",
        "schedule is not None and schedule.next_at == tick and",
        "schedule is not None and",
        CONFORMANCE,
    ),
    Mutant(
        "shares ignore weights",
        "src/forebay/core/share.py",
        "return self._weights.get(name, self._default)",
        "return self._default",
        ("tests/unit/test_share.py",),
    ),
    Mutant(
        "whoever deals begins with the same class",
        "src/forebay/core/share.py",
        "skipped = int(self._start * sum(map(self._weight, self._ring)))",
        "skipped = 0",
        ("tests/unit/test_share.py",),
    ),
    Mutant(
        "sqlite: two processes that deal have the same number",
        "src/forebay/store/sqlite/turn.py",
        "self.head.dealers += 1",
        "self.head.dealers += 0",
        ("tests/stores/test_conformance.py", "-k", "sqlite-shares and (eight or hundred)"),
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
        "facts.next_id, facts.last_at = head.next_id, head.last_at",
        "facts.next_id, facts.last_at = 1, head.last_at",
        CRASH,
    ),
    Mutant(
        "segments are dropped before the snapshot",
        f"{MEMORY}/journaled.py",
        "        self._journal.snapshot(upto, self._unhurried(image(facts), 1))\n",
        "        self._journal.snapshot(upto, self._unhurried(iter(()), 1))\n",
        CRASH,
    ),
    Mutant(
        "a log reader skips trimmed entries silently",
        f"{MEMORY}/log_verbs.py",
        "            if after + 1 < place.first:\n",
        "            if False:\n",
        CONFORMANCE,
    ),
    Mutant(
        "commits move back",
        f"{MEMORY}/log_verbs.py",
        "known = offset if rewind else max(known, offset)",
        "known = offset",
        CONFORMANCE,
    ),
    Mutant(
        "the dead stay where they died",
        f"{MEMORY}/facts.py",
        "        if grave is not None and grave.queue is not None:\n",
        "        if False:\n",
        GRAVES,
    ),
    Mutant(
        "a redrive does not send them home",
        f"{MEMORY}/facts.py",
        "expires_at=None, queue=row.queue)",
        "expires_at=None, queue=row.entry.queue)",
        GRAVES,
    ),
    Mutant(
        "dead letters are kept for ever",
        f"{MEMORY}/facts.py",
        "0 if grave is None else grave.kept_until",
        "0",
        GRAVES,
    ),
    Mutant(
        "nobody counts the dead",
        f"{MEMORY}/engine.py",
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
        "src/forebay/store/sqlite/graves.py",
        "        turn.tally.moved(queue, cls, was, None, count)\n",
        "",
        ("tests/stores/test_conformance.py", "-k", "sqlite-graves"),
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
]
