"""The guards, and how each is broken. `tests` are what should notice, in as little time as possible."""

from dataclasses import dataclass

CONFORMANCE = ("tests/stores/test_conformance.py", "-k", "memory and not journaled and not sqlite")
CRASH = ("tests/stores/test_crash_points.py",)
SQLITE = ("tests/stores/test_conformance.py", "-k", "sqlite and (lines or gates)")
MEMORY = "src/forebay/store/memory"
GATING = "src/forebay/store/gating.py"


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
        "no fence",
        f"{MEMORY}/jobs.py",
        "if row is None or row.state is not State.RUNNING or row.delivery != lease.job.delivery:",
        "if row is None or row.state is not State.RUNNING:",
        CONFORMANCE,
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
        "if row is None or row.due_at > now:",
        "if row is None or row.due_at > now + 1_000_000:",
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
        f"{MEMORY}/facts.py",
        "return fact if fact is not None and fact[2] > now else None",
        "return fact",
        CONFORMANCE,
    ),
    Mutant(
        "duplicates inside one batch",
        f"{MEMORY}/intake.py",
        "fact = keys.get(name) or self._facts.key(name, now)",
        "fact = self._facts.key(name, now)",
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
        "line.depth + count > capacity.limit:",
        "line.depth + count > capacity.limit + 1:",
        CONFORMANCE,
    ),
    Mutant(
        "jitter lost",
        "src/forebay/core/policy.py",
        "return int(draw * _doubled(self.base, self.cap, attempt))",
        "return _doubled(self.base, self.cap, attempt)",
        ("tests/unit/test_backoff.py",),
    ),
    Mutant(
        "backoff without a cap",
        "src/forebay/core/policy.py",
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
        "return Retry(0, _abandoned(owner))",
        "return Release(0)",
        ("tests/unit/test_decide.py",),
    ),
    Mutant(
        "order broken by a retry",
        f"{MEMORY}/gates.py",
        "or (place.line is not None and place.line.peek() is not row):",
        "or False:",
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
        GATING,
        "return self.held < (min(slots, 1) if self.standing else slots)",
        "return self.held < slots",
        SQLITE,
    ),
    Mutant(
        "order broken by a retry, in tables",
        GATING,
        "or (gate.ordered and self._tables.head(gate.name) != job_id):",
        "or False:",
        SQLITE,
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
        "        if entry.gates:\n            self.gates.release(row)\n        line = self.lines[entry.queue]",
        "        if entry.gates and row.state is not State.DEAD:\n            self.gates.release(row)\n"
        "        line = self.lines[entry.queue]",
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
        f"{MEMORY}/store.py",
        "            if after + 1 < place.first:\n",
        "            if False:\n",
        CONFORMANCE,
    ),
    Mutant(
        "commits move back",
        f"{MEMORY}/store.py",
        "if offset > known or (rewind and offset != known):",
        "if offset != known:",
        CONFORMANCE,
    ),
    Mutant(
        "NaN in a payload",
        "src/forebay/core/payload.py",
        "        if not isfinite(value):",
        "        if False:",
        ("tests/unit/test_payload.py",),
    ),
]
