"""Mutants of the embedded store, and of the rules that it runs: lanes, lines, gates and turns in its tables."""

from tests.mutants.guards import Mutant

_SQLITE = "src/forebay/store/sqlite"
_ENGINE = "src/forebay/engine"


def _cases(*themes: str) -> tuple[str, ...]:
    return ("tests/stores/test_conformance.py", "-k", " or ".join(f"sqlite-{theme}-" for theme in themes))


SQLITE_MUTANTS = [
    Mutant(
        "sqlite: a settle gives no slot back",
        f"{_SQLITE}/unit_of_work.py",
        "            self.gates.give_back(name, cost)\n",
        "            self.gates.give_back(name, 0 * cost)\n",
        _cases("gates"),
    ),
    Mutant(
        "sqlite: gates of the whole queue bound nothing",
        f"{_SQLITE}/claims.py",
        "count = self._admitted(queue, whole, count)",
        "self._admitted(queue, whole, count)",
        _cases("gates"),
    ),
    Mutant(
        "sqlite: a dear job takes one slot of the whole queue",
        f"{_SQLITE}/claims.py",
        "state.take(queue.name, gate, cost, unit.now)",
        "state.take(queue.name, gate, 1, unit.now)",
        _cases("costs"),
    ),
    Mutant(
        "sqlite: a rate that owes is forgotten",
        f"{_SQLITE}/gates.py",
        "row.used or row.tat > self._now or",
        "row.used or",
        _cases("rates"),
    ),
    Mutant(
        "sqlite: a gate is not written back",
        f"{_SQLITE}/gates.py",
        "            self._connection.executemany(_PUT, put)\n",
        "            pass\n",
        _cases("gates"),
    ),
    Mutant(
        "sqlite: a new job passes the head of its line",
        "src/forebay/engine/intake.py",
        "entry.line is not None and entry.line in taken",
        "entry.line is not None and entry.line in ()",
        _cases("lines"),
    ),
    Mutant(
        "sqlite: a job that goes back does not lead its line",
        f"{_SQLITE}/settling.py",
        "        if lines:\n            unit.expose(lines)\n",
        "",
        _cases("lines"),
    ),
    Mutant(
        "sqlite: a redriven job does not push back what was exposed",
        f"{_SQLITE}/settling.py",
        "        unit.step_back(head)\n",
        "",
        _cases("lines"),
    ),
    Mutant(
        "sqlite: a line stays shut when its dead head is forgotten",
        f"{_SQLITE}/unit_of_work.py",
        "        unit.expose_if_free(lines)\n",
        "        pass\n",
        _cases("lines", "dead"),
    ),
    Mutant(
        "sqlite: a released job is held again",
        f"{_SQLITE}/control.py",
        "(_MOVE_TO_LANE, (job_id, free))",
        "(_MOVE_TO_LANE, (job_id, lane))",
        _cases("releasing"),
    ),
    Mutant(
        "sqlite: other lanes are ahead of you too",
        f"{_SQLITE}/queues.sql",
        "WHERE state = 1 AND queue = ?1 AND lane = ?2 AND rank <= ?3",
        "WHERE state = 1 AND queue = ?1 AND ?2 IS NOT NULL AND rank <= ?3",
        _cases("explaining"),
    ),
    Mutant(
        "sqlite: room does not wake the lanes parked at a gate",
        f"{_SQLITE}/gates.py",
        "                self._connection.execute(_WAKE, (queue, gate))\n",
        "",
        _cases("lanes", "gates"),
    ),
    Mutant(
        "sqlite: a rate that opens wakes nothing",
        f"{_SQLITE}/unit_of_work.py",
        "        unit.lanes.open_rates(limit)\n",
        "        pass\n",
        _cases("rates", "lanes"),
    ),
    Mutant(
        "sqlite: turns are not written back",
        f"{_SQLITE}/fronts.py",
        "        self._connection.executemany(_PUT_CLASS, rows)\n",
        "",
        _cases("shares"),
    ),
    Mutant(
        "sqlite: an idle class saves turns up",
        f"{_SQLITE}/gates.py",
        "self._connection.execute(_OPEN_CLASS, (queue.name, cls, queue.turn))",
        "self._connection.execute(_OPEN_CLASS, (queue.name, cls, 0))",
        _cases("shares", "turns"),
    ),
    Mutant(
        "sqlite: a new spec does not count what runs",
        f"{_SQLITE}/control.py",
        "        _count_again(unit, queue, before)\n",
        "",
        _cases("lanes"),
    ),
    Mutant(
        "sqlite: held jobs end the sleep of a claimer",
        f"{_SQLITE}/observing.py",
        "max(workable_at(reader, gates, queue, now), queue.paused_until or 0)",
        "queue.paused_until or 0",
        _cases("lanes"),
    ),
    Mutant(
        "sqlite: a cancelled head keeps others waiting",
        f"{_SQLITE}/settling.py",
        "        unit.lanes.left(row.queue, row.lane)\n",
        "        pass\n",
        _cases("costs", "lanes", "explaining"),
    ),
    Mutant(
        "sqlite: newer work does not move a held job",
        f"{_SQLITE}/intake.py",
        "            unit.lanes.left(queue, lane)\n",
        "            pass\n",
        ("tests/stores/test_sqlite.py", "-k", "newer_work_moves"),
    ),
    Mutant(
        "engine: two equal keys of one batch are two jobs",
        f"{_ENGINE}/intake.py",
        "fact = self.keys.get(name) or self._tables.taken_key(*name)",
        "fact = self._tables.taken_key(*name)",
        _cases("keys"),
    ),
    Mutant(
        "engine: a key takes another payload",
        f"{_ENGINE}/intake.py",
        "            raise KeyConflict(draft.queue, draft.key, fact.job_id)\n",
        "            pass\n",
        _cases("keys"),
    ),
    Mutant(
        "engine: newer work of one batch does not meet",
        f"{_ENGINE}/intake.py",
        'self._newest[draft.queue, draft.subject or ""] = target if alive else None',
        "self._newest.clear()",
        _cases("merging", "quiet"),
    ),
    Mutant(
        "engine: a full queue takes more",
        f"{_ENGINE}/intake.py",
        "            raise queue_full(stamper.spec, depth, count)\n",
        "            return []\n",
        _cases("capacity", "sheds"),
    ),
    Mutant(
        "engine: a redrive fills a full queue",
        f"{_ENGINE}/intake.py",
        "            raise queue_full(spec, depth, count)\n",
        "            pass\n",
        _cases("capacity", "dead"),
    ),
    Mutant(
        "engine: a verdict on a renewed lease counts",
        f"{_ENGINE}/settle.py",
        "if held and not outlived(lease, verdict, row.lease_until):",
        "if held:",
        _cases("taking_back", "settling", "leases"),
    ),
    Mutant(
        "engine: a repeated settle is stale",
        f"{_ENGINE}/settle.py",
        "                last = row.mark\n",
        "                last = None\n",
        _cases("settling"),
    ),
    Mutant(
        "engine: a released job loses its attempt",
        f"{_ENGINE}/settle.py",
        "return attempt - (change == Change.RELEASED)",
        "return attempt",
        _cases("settling", "taking_back"),
    ),
    Mutant(
        "engine: a job is cancelled twice in one call",
        f"{_ENGINE}/settle.py",
        "if state is None or state.terminal or job_id in ended:",
        "if state is None or state.terminal:",
        _cases("settling", "dead", "leases"),
    ),
    Mutant(
        "engine: a log loses partitions",
        f"{_ENGINE}/control.py",
        "if partitions.stop < partitions.start:",
        "if False:",
        _cases("logs"),
    ),
    Mutant(
        "engine: a slot is taken twice",
        f"{_ENGINE}/control.py",
        "and (last_at is None or tick > last_at)",
        "",
        _cases("schedules"),
    ),
]
