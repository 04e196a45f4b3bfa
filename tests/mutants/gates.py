"""The guards of what holds jobs back, in core, in the engine of lanes and in process; and how each is broken."""

from tests.mutants.guards import MEMORY, Mutant

_SUITE = "tests/stores/test_conformance.py"
_CORE = "src/forebay/core/gate.py"
_ENGINE = "src/forebay/engine/lanes.py"


def _cases(*files: str, store: str = "memory") -> tuple[str, ...]:
    """The conformance cases of these files on one store."""
    return (_SUITE, "-k", " or ".join(f"{store}-{file}" for file in files))


GATE_MUTANTS = [
    Mutant(
        "a closed rate has a time at which it opens",
        _CORE,
        "(limit - min(cost, limit)) * gate.step if limit else MAX_INSTANT",
        "(limit - min(cost, limit)) * gate.step",
        ("tests/unit/test_rates.py",),
    ),
    Mutant(
        "a costly job counts for one start",
        _CORE,
        "return tat - (limit - min(cost, limit)) * gate.step",
        "return tat - (limit - min(1, limit)) * gate.step",
        _cases("rates"),
    ),
    Mutant(
        "a gate that has room shows jobs that are parked there",
        "src/forebay/store/memory/queue_state.py",
        "if lane.at is not None and not lane.at.is_open(lane.at.numbers[queue], lane.cost, now):",
        "if lane.at is not None:",
        _cases("gate_pages"),
    ),
    Mutant(
        "a rate wakes the lanes of one queue only",
        _ENGINE,
        "min((at for at in opens if now < at < MAX_INSTANT), default=None)",
        "min((at for at in [min(opens, default=0)] if now < at < MAX_INSTANT), default=None)",
        _cases("rates"),
    ),
    Mutant(
        "a start of a rate is free",
        _CORE,
        "return max(tat, now) + cost * gate.step",
        "return max(tat, now)",
        _cases("rates"),
    ),
    Mutant(
        "a job that costs more than there is waits for ever",
        _CORE,
        "return used + min(cost, max(slots, 1)) <= slots",
        "return used + cost <= slots",
        _cases("costs"),
    ),
    Mutant(
        "a line has a number that an operator may set",
        _CORE,
        '    if sort in ("order", "merge"):\n',
        "    if False:\n",
        ("tests/unit/test_gate.py",),
    ),
    Mutant(
        "shares ignore weights",
        "src/forebay/core/stamp.py",
        "return 0 if share is None else share.weights.get(cls, share.default)",
        "return 0 if share is None else share.default",
        _cases("shares"),
    ),
    Mutant(
        "a settle gives no slot back",
        _ENGINE,
        "            state.used -= cost\n",
        "            pass\n",
        _cases("gates", "lanes"),
    ),
    Mutant(
        "room at a gate opens no lane",
        _ENGINE,
        "            state.used -= cost\n            self.wake(state)\n",
        "            state.used -= cost\n",
        _cases("gates", "lanes"),
    ),
    Mutant(
        "a lane that used no room leaves none to the others",
        _ENGINE,
        "            state.refs -= 1\n            self.wake(state)\n",
        "            state.refs -= 1\n",
        ("tests/unit/test_lanes.py",),
    ),
    Mutant(
        "an expired job spends a start of its rate",
        _ENGINE,
        "                taken.expired.append(job)\n",
        "                taken.expired.append(job)\n"
        "                [state.take(queue_lanes.queue, gate, job.cost, now) for gate, state in lane.gates]\n",
        _cases("rates", "gates"),
    ),
    Mutant(
        "a cheap job passes a costly one at its gate",
        _ENGINE,
        "if first is not None and earlier and not state.is_open(gate, first.cost, now):",
        "if False:",
        _cases("costs"),
    ),
    Mutant(
        "classes share past a cap of the whole queue",
        _ENGINE,
        "            elif queue_lanes.whole and closed_of(queue_lanes.whole, job.cost, now) is not None:\n",
        "            elif False:\n",
        _cases("turns"),
    ),
    Mutant(
        "a class has its turn for ever",
        _ENGINE,
        "            of.turn = turn_after(of.turn, of.weight)\n",
        "",
        _cases("shares", "turns"),
    ),
    Mutant(
        "a class that was idle saved its turns up",
        _ENGINE,
        "            of.turn = lifted(of.turn, queue_lanes.turn)\n",
        "            of.turn = of.turn\n",
        ("tests/unit/test_lanes.py",),
    ),
    Mutant(
        "what runs is not counted by another spec",
        _ENGINE,
        "                if not gate.step:\n                    state.take(queue_lanes.queue, gate, cost, self.now)\n",
        "                pass\n",
        _cases("lanes"),
    ),
    Mutant(
        "a claim of one class does not see the room at its gates",
        _ENGINE,
        "            self._open_again(queue_lanes, only)\n",
        "            pass\n",
        ("tests/unit/test_lanes.py",),
    ),
    Mutant(
        "a cap does not bound a claim of a plain queue",
        f"{MEMORY}/queue_state.py",
        "min(count, room_of(queue_lanes.whole, now)) if queue_lanes.whole else count",
        "count",
        _cases("gates"),
    ),
    Mutant(
        "the starts of a class without a name do not count",
        f"{MEMORY}/queue_state.py",
        "if len(queue_lanes.lanes) == 1 and _NO_LANE in queue_lanes.lanes and queue_lanes.weight is None:",
        "if len(queue_lanes.lanes) == 1 and _NO_LANE in queue_lanes.lanes:",
        _cases("shares"),
    ),
    Mutant(
        "room at a gate wakes no claimer",
        f"{MEMORY}/index.py",
        "                self.has_room(state, entry.cost)\n",
        "                pass\n",
        _cases("lanes", "timing"),
    ),
    Mutant(
        "held jobs end every sleep",
        f"{MEMORY}/observing.py",
        "if work_at <= now or now >= deadline:",
        "if self._index.queue(queues[0]).counts[State.READY] or work_at <= now or now >= deadline:",
        _cases("lanes", "timing"),
    ),
    Mutant(
        "a dead head that blocks its line is skipped",
        f"{MEMORY}/index.py",
        "            if in_line(row.state, blocks=entry.blocks):\n",
        "            if False:\n",
        _cases("lines"),
    ),
    Mutant(
        "a redriven head leaves the exposed one where it is",
        f"{MEMORY}/index.py",
        "                found[exposed.entry.id] = exposed\n",
        "                pass\n",
        _cases("lines"),
    ),
    Mutant(
        "a head that is redriven with others is exposed twice",
        f"{MEMORY}/jobs.py",
        "in sorted(zip(dead.values(), left, strict=True), key=lambda pair: pair[0].entry.id):",
        "in zip(dead.values(), left, strict=True):",
        _cases("lines"),
    ),
    Mutant(
        "a purged head is exposed",
        f"{MEMORY}/facts.py",
        "        return self.state.terminal\n",
        "        return self.state is State.DEAD\n",
        _cases("lines"),
    ),
    Mutant(
        "a job that comes back is exposed beside one that runs",
        "src/forebay/engine/lines.py",
        " or (exposed is not None and exposed.is_running)",
        "",
        _cases("lines"),
    ),
    Mutant(
        "a line exposes its dead head",
        "src/forebay/engine/lines.py",
        "None if head is None or head.has_ended else head",
        "head",
        _cases("lines"),
    ),
    Mutant(
        "a released job is held again",
        f"{MEMORY}/changes.py",
        "row.entry = replace(row.entry, gates=tuple(name for name in row.entry.gates if name != change.name))",
        "row.entry = replace(row.entry)",
        _cases("releasing"),
    ),
    Mutant(
        "a release counts jobs past their expiry",
        f"{MEMORY}/control.py",
        "(late if row.is_expired(now) else rows).append(row)",
        "rows.append(row)",
        _cases("releasing"),
    ),
    Mutant(
        "a claim does not write down what it took of a rate",
        f"{MEMORY}/jobs.py",
        "[claimed], owner=owner, tables=tables))",
        "[claimed], owner=owner))",
        _cases("gate_pages", "lanes", store="journaled"),
    ),
    Mutant(
        "the checker of rates admits one more start",
        "proof/src/forebay_proof/checkers/gates.py",
        "            if total > most:\n",
        "            if total > most + 1:\n",
        ("tests/unit/test_checkers.py",),
    ),
    Mutant(
        "the checker of caps admits one more job",
        "proof/src/forebay_proof/checkers/gates.py",
        "sum(used.values()) > slots and",
        "sum(used.values()) > slots + 1 and",
        ("tests/unit/test_checkers.py",),
    ),
    Mutant(
        "the model lets a class go out of turn",
        "proof/src/forebay_proof/model/claims.py",
        "bool(legal) or want.cls is not None",
        "True",
        ("tests/unit/test_model.py",),
    ),
    Mutant(
        "a full broker's queue takes the others' copies all the same",
        "src/forebay/engine/intake.py",
        "            if excess_of(self._stampers[queue].spec, depth, arrivals[queue]) > 0:",
        "            if False:",
        _cases("routing"),
    ),
]
