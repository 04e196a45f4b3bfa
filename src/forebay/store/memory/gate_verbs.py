"""The verbs about gates that are not about one queue: their numbers, who passes a condition, and what holds a job."""

from heapq import merge

from forebay.core.changeset import PASSED, ChangeSet, JobChange, Tables
from forebay.core.gate import Gate
from forebay.core.instant import Instant
from forebay.core.job import State
from forebay.core.limits import MAX_AHEAD, MAX_DEPTH, MAX_INSTANT
from forebay.core.record_builder import TEND
from forebay.engine.lanes import opening
from forebay.store.memory.jobs import JobVerbs
from forebay.store.memory.row import Row
from forebay.store.protocol import GateUse, Hold


class GateVerbs(JobVerbs):
    """Gates as operators see them, and release, hold, ahead."""

    def set_gate(self, name: str, limit: int | None) -> None:
        with self._lock:
            now = self._begin()
            verb = TEND if self._facts.gate_limits.get(name) == limit else "set_gate"
            self._commit(ChangeSet(now, verb, name=name, tables=Tables(gate_limits={name: limit})))
            lanes = self._index.lanes
            state = lanes.gates.get(name)
            if state is not None:
                state.given = limit
                lanes.changed(state)
                self._index.has_room(state, MAX_DEPTH)
            self._tend(now)
            self._rouse(now)
            lsn = self._lsn
        self._settle_down(lsn)

    def gates(self, after: str, limit: int, prefix: str) -> list[GateUse]:
        with self._lock:
            now = self._begin()
            facts, states = self._facts, self._index.lanes.gates
            names = {name for name, state in states.items() if state.used}
            names |= {name for name, tat in facts.tats.items() if tat > now} | facts.gate_limits.keys()
            wanted = sorted(name for name in names if name > after and name.startswith(prefix))
            uses: list[GateUse] = []
            for name in wanted:
                use = self._use(name)
                if use is not None:
                    uses.append(use)
                if len(uses) == limit:
                    break
            lsn = self._lsn
        self._settle_down(lsn)
        return uses

    def release(self, name: str, count: int) -> int:
        with self._lock:
            now = self._begin()
            self._tend(now)
            rows = self._first_behind(name, count, now)
            if rows:
                for row in rows:
                    self._index.queues[row.entry.queue].withdraw(row)
                passed = JobChange(PASSED, [row.entry.id for row in rows])
                self._commit(ChangeSet(now, "release", [passed], name=name))
                for row in rows:
                    queue = self._index.queues[row.entry.queue]
                    queue.push(row)
                    if queue.claimers.sleepers:
                        self._index.notify(queue, 1)
                self._rouse(now)
            lsn = self._lsn
        self._settle_down(lsn)
        return len(rows)

    def hold(self, job_id: int) -> Hold | None:
        with self._lock:
            now = self._begin()
            row = self._facts.rows.get(job_id)
            held = None if row is None else self._holding(row, now)
            lsn = self._lsn
        self._settle_down(lsn)
        return held

    def ahead(self, job_id: int) -> int | None:
        with self._lock:
            self._begin()
            row = self._facts.rows.get(job_id)
            ready = row is not None and row.state is State.READY
            before = self._index.queues[row.entry.queue].ahead(row, MAX_AHEAD) if row is not None and ready else None
            lsn = self._lsn
        self._settle_down(lsn)
        return before

    def _holding(self, row: Row, now: Instant) -> Hold | None:
        if row.state is State.WAITING and row.entry.line is not None and row.due_at <= now:
            return self._index.lines.holding(row.entry.line, row)
        if row.state is not State.READY:
            return None
        queue = self._index.queues[row.entry.queue]
        closed = queue.holding(row, now)
        if closed is None:
            return None
        (gate, state), cost = closed
        opens_at = opening(gate, state, cost)
        slots = gate.limit if state.given is None else state.given
        return Hold(
            gate.name,
            slots,
            state.used,
            queue.ahead(row, MAX_AHEAD),
            opens_at=opens_at if opens_at < MAX_INSTANT else None,
        )

    def _use(self, name: str) -> GateUse | None:
        """A gate as a queue has it that used it last, or that has it at all; None: no queue has, nor an operator."""
        given, state = self._facts.gate_limits.get(name), self._index.lanes.gates.get(name)
        gate = None if state is None else state.numbers.get(state.queue or "")
        if gate is None and given is None:
            gate = self._gate(name)
        if gate is None and given is None:
            return None
        slots = given if given is not None or gate is None else gate.limit
        return GateUse(name, slots or 0, 0 if state is None else state.used, given)

    def _gate(self, name: str) -> Gate | None:
        stampers = (queue.stamper for queue in self._index.queues.values())
        found = (
            next((gate for gate in stamper.whole if gate.name == name), None) or stamper.gate(name)
            for stamper in stampers
            if stamper.gated
        )
        return next((gate for gate in found if gate is not None), None)

    def _first_behind(self, name: str, count: int, now: Instant) -> list[Row]:
        """The first ready rows of lanes with this gate; those past their expiry die, and do not count."""
        index = self._index
        walks = [index.queues[queue].walk(lane) for queue, lane in index.lanes.conditions.get(name, ())]
        rows: list[Row] = []
        late: list[Row] = []
        for _, _, row in merge(*walks):
            expires_at = row.entry.expires_at
            (rows if expires_at is None or expires_at > now else late).append(row)
            if len(rows) == count:
                break
        if late:
            self._let_expire(late, now)
        return rows
