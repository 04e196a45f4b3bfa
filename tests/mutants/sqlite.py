"""Mutants of the embedded store: lanes, lines, gates and turns in its tables."""

from tests.mutants.guards import Mutant

_SQLITE = "src/forebay/store/sqlite"


def _cases(*themes: str) -> tuple[str, ...]:
    return ("tests/stores/test_conformance.py", "-k", " or ".join(f"sqlite-{theme}-" for theme in themes))


SQLITE_MUTANTS = [
    Mutant(
        "sqlite: a settle gives no slot back",
        f"{_SQLITE}/turn.py",
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
        "state.take(queue.name, gate, cost, turn.now)",
        "state.take(queue.name, gate, 1, turn.now)",
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
        f"{_SQLITE}/intake.py",
        "behind=entry.line in taken",
        "behind=entry.line in set()",
        _cases("lines"),
    ),
    Mutant(
        "sqlite: a job that goes back does not lead its line",
        f"{_SQLITE}/settling.py",
        "            turn.expose(self._lines)\n",
        "            pass\n",
        _cases("lines"),
    ),
    Mutant(
        "sqlite: a redriven job does not push back what was exposed",
        f"{_SQLITE}/settling.py",
        "        turn.step_back(head)\n",
        "",
        _cases("lines"),
    ),
    Mutant(
        "sqlite: a line stays shut when its dead head is forgotten",
        f"{_SQLITE}/tend.py",
        "        turn.expose_if_free(lines)\n",
        "        pass\n",
        _cases("lines", "dead"),
    ),
    Mutant(
        "sqlite: a released job is held again",
        f"{_SQLITE}/gate_verbs.py",
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
        f"{_SQLITE}/lanes.py",
        "                self._connection.execute(_WAKE, (queue, gate))\n",
        "",
        _cases("lanes", "gates"),
    ),
    Mutant(
        "sqlite: a rate that opens wakes nothing",
        f"{_SQLITE}/tend.py",
        "        turn.lanes.open_rates(limit)\n",
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
        f"{_SQLITE}/lanes.py",
        "self._connection.execute(_OPEN_CLASS, (queue.name, cls, queue.turn))",
        "self._connection.execute(_OPEN_CLASS, (queue.name, cls, 0))",
        _cases("shares", "turns"),
    ),
    Mutant(
        "sqlite: a new spec does not count what runs",
        f"{_SQLITE}/queues.py",
        "        _count_again(turn, queue, before)\n",
        "",
        _cases("lanes"),
    ),
    Mutant(
        "sqlite: held jobs end the sleep of a claimer",
        f"{_SQLITE}/queues.py",
        "max(workable_at(reader, gates, queue, now), queue.paused_until or 0)",
        "queue.paused_until or 0",
        _cases("lanes"),
    ),
    Mutant(
        "sqlite: a cancelled head keeps others waiting",
        f"{_SQLITE}/settling.py",
        "        turn.lanes.left(row.queue, row.lane)\n",
        "        pass\n",
        _cases("costs", "lanes", "explaining"),
    ),
    Mutant(
        "sqlite: newer work does not move a held job",
        f"{_SQLITE}/intake.py",
        "                self._turn.lanes.left(queue, lane)\n",
        "                pass\n",
        ("tests/stores/test_sqlite.py", "-k", "newer_work_moves"),
    ),
]
