"""The guards of what holds jobs back: rates, costs, released conditions, what is told of it; and how each is broken."""

from tests.mutants.guards import MEMORY, Mutant

_SUITE = "tests/stores/test_conformance.py"
_POSTGRES = "src/forebay/store/postgres"


def _cases(store: str, file: str) -> tuple[str, ...]:
    """The conformance cases of one file on one store."""
    return (_SUITE, "-k", f"{store}-{file}")


GATE_MUTANTS = [
    Mutant(
        "a released job is held again",
        f"{MEMORY}/facts.py",
        "row.entry = replace(row.entry, gates=tuple(gate for gate in row.entry.gates if gate.name != event.gate))",
        "row.entry = replace(row.entry)",
        _cases("memory", "releasing"),
    ),
    Mutant(
        "a release counts who is past its expiry",
        f"{MEMORY}/gate_verbs.py",
        "            rows += [row for row in some if row.state is State.WAITING]\n",
        "            rows += some\n",
        _cases("memory", "releasing"),
    ),
    Mutant(
        "a released job is held again, in Postgres",
        f"{_POSTGRES}/queues.sql",
        "SET gates = u.gates, gate = NULL",
        "SET gates = coalesce(r.gates, u.gates), gate = NULL",
        _cases("postgres", "releasing"),
    ),
    Mutant(
        "a release goes by age, in Postgres",
        f"{_POSTGRES}/queues.sql",
        "(expires_at IS NULL OR expires_at > %s) ORDER BY rank, last_id LIMIT %s;",
        "(expires_at IS NULL OR expires_at > %s) ORDER BY last_id LIMIT %s;",
        _cases("postgres", "releasing"),
    ),
    Mutant(
        "everybody at a gate is before you",
        f"{MEMORY}/gates.py",
        "before = place.parked.before(row.rank, row, AHEAD_MOST)",
        "before = len(place.parked)",
        _cases("memory", "explaining"),
    ),
    Mutant(
        "those of your own run are not ahead of you, in Postgres",
        f"{_POSTGRES}/queues.sql",
        "), 0) + %s - (j.last_id - j.n + 1))",
        "), 0) + 0 * %s)",
        _cases("postgres", "explaining"),
    ),
    Mutant(
        "a closed rate has a time at which it opens",
        "src/forebay/core/gate.py",
        "(most - min(gate.cost, most)) * gate.step if most else INSTANT_MOST",
        "(most - min(gate.cost, most)) * gate.step",
        _cases("memory", "rates"),
    ),
    Mutant(
        "a dear job counts for one start",
        "src/forebay/core/gate.py",
        "return tide - (most - min(gate.cost, most)) * gate.step",
        "return tide - (most - min(1, most)) * gate.step",
        _cases("memory", "rates"),
    ),
    Mutant(
        "a start is spent on who has just expired",
        f"{MEMORY}/index.py",
        "            if row.entry.expires_at is not None and row.entry.expires_at <= now:\n",
        "            if False:\n",
        _cases("memory", "rates"),
    ),
    Mutant(
        "a claim does not write down what it took of a rate",
        f"{MEMORY}/jobs.py",
        "dict(self._index.gates.moved)",
        "dict[str, Instant]()",
        _cases("memory", "rates"),
    ),
    Mutant(
        "who costs more than there is waits for ever",
        "src/forebay/core/gate.py",
        "return held + min(cost, max(slots, 1)) <= slots",
        "return held + cost <= slots",
        _cases("memory", "costs"),
    ),
    Mutant(
        "the checker of rates lets one more start",
        "src/forebay/testing/checkers/rates.py",
        "            if total > most:\n",
        "            if total > most + 1:\n",
        ("tests/unit/test_checkers.py",),
    ),
    Mutant(
        "a full broker's queue takes the others' copies all the same",
        f"{MEMORY}/intake.py",
        "excess = count - line.room",
        "excess = 0 * count - 0 * line.room",
        _cases("memory", "routing"),
    ),
    Mutant(
        "a flood takes every slot of a cap",
        f"{MEMORY}/gates.py",
        "return turns.first(turns.head()) or first",
        "return first",
        _cases("memory", "turns"),
    ),
    Mutant(
        "a class has its turn for ever",
        "src/forebay/core/share.py",
        "self._left.move_to_end(name)",
        "pass",
        _cases("memory", "turns"),
    ),
    Mutant(
        "who is ready keeps others from starting",
        f"{MEMORY}/jobs.py",
        "if want.cls is None and line.spec.share is not None:",
        "if False:",
        _cases("memory", "turns"),
    ),
    Mutant(
        "a free slot sends all who wait on to their rate",
        f"{MEMORY}/gates.py",
        "if turn is not None and gate.step and not starts and self._behind(gate, place, row, turn, now):",
        "if False:",
        _cases("memory", "turns"),
    ),
]
