"""The guards of several stores as one, and how each is broken."""

from tests.mutants.guards import Mutant

_HOME = "src/forebay/store/cells"
_TESTS = ("tests/stores/test_cells.py",)

CELL_MUTANTS = [
    Mutant(
        "a partition is found by a hash that differs from process to process",
        f"{_HOME}/cell_map.py",
        "    return crc32(value.encode()) % partitions\n",
        "    return id(value) % partitions\n",
        (*_TESTS, "-k", "lives_in_one_cell"),
    ),
    Mutant(
        "keys are accepted where they are unique in one cell only",
        f"{_HOME}/cell_map.py",
        'placement.by != "key" and placement.keys == "queue"',
        'placement.by != "key" and placement.keys != "queue"',
        (*_TESTS, "-k", "key_is_unique"),
    ),
    Mutant(
        "a cap of the whole queue is kept by each cell on its own",
        f"{_HOME}/promises.py",
        "        if term.per != by:\n",
        "        if term.per is not None and term.per != by:\n",
        (*_TESTS, "-k", "promise"),
    ),
    Mutant(
        "queues of different cells share a gate",
        f"{_HOME}/promises.py",
        "    _check_shared(spec, cells, others)\n",
        "",
        (*_TESTS, "-k", "decide_together"),
    ),
    Mutant(
        "a store is two cells",
        f"{_HOME}/agreement.py",
        "        if agreed is not None and agreed.cell != self._cell:\n",
        "        if False:\n",
        (*_TESTS, "-k", "twin"),
    ),
    Mutant(
        "processes with different maps route side by side",
        f"{_HOME}/agreement.py",
        "        if agreed is None or agreed.map != self._map:\n",
        "        if agreed is None:\n",
        (*_TESTS, "-k", "differs or older_map"),
    ),
    Mutant(
        "a new version loses jobs from sight",
        f"{_HOME}/agreement.py",
        "            if _same(before, after) or not (queue in logs or _holds_jobs(self._backend, queue)):\n",
        "            if True:\n",
        (*_TESTS, "-k", "lost_from_sight or holds_jobs"),
    ),
    Mutant(
        "jobs that a slow cell claimed too late stay claimed",
        f"{_HOME}/guard.py",
        "        if late is not None:\n",
        "        if late is not None and future.done():\n",
        (*_TESTS, "-k", "late_claims"),
    ),
    Mutant(
        "a slow cell has all the time",
        f"{_HOME}/guard.py",
        "            return future.result(self._deadline)\n",
        "            return future.result()\n",
        (*_TESTS, "-k", "late_claims"),
    ),
    Mutant(
        "a cell that fails fails the claims of all",
        f"{_HOME}/jobs.py",
        "                    raise\n                continue\n",
        "                    raise\n                raise\n",
        (*_TESTS, "-k", "holds_up_no_other or late_claims"),
    ),
    Mutant(
        "a cell that fails fails the verdicts of all",
        f"{_HOME}/cell_group.py",
        "            raise failure if failed == len(parts) else PartlyDone(answers, failure)\n",
        "            raise failure\n",
        (*_TESTS, "-k", "holds_up_no_other or settler"),
    ),
    Mutant(
        "verdicts for a cell that is down keep back those for the others",
        f"{_HOME}/jobs.py",
        "            raise PartlyDone([None] * len(settlements), error) from error\n",
        "            raise\n",
        (*_TESTS, "-k", "settler"),
    ),
    Mutant(
        "what lived through an outage is reaped at its end",
        f"{_HOME}/cell.py",
        "        if self.guard.recovering:\n",
        "        if False:\n",
        (*_TESTS, "-k", "not_reaped"),
    ),
    Mutant(
        "the metrics know nothing of cells",
        "src/forebay/serve/metrics/server_metrics.py",
        "            families.cells(self.poller),\n",
        "",
        ("tests/serve/test_cells.py",),
    ),
    Mutant(
        "the ledger of several cells is said to be empty",
        "src/forebay/cli/ledger.py",
        '    if scheme == "cells" or (',
        "    if (",
        ("tests/unit/test_cli_cells.py", "-k", "ledger"),
    ),
    Mutant(
        "a schedule that moves to another cell stays in its old one",
        f"{_HOME}/control.py",
        "                    cell.drop_schedule(schedule.name)\n",
        "",
        (*_TESTS, "-k", "schedule"),
    ),
    Mutant(
        "a verb on an id of another cell touches a job of this one",
        f"{_HOME}/ids.py",
        "        return job_id & MAX_LOCAL if cell_of(job_id) == self._number else 0\n",
        "        return job_id & MAX_LOCAL\n",
        (*_TESTS, "-k", "carries_its_cell"),
    ),
]
