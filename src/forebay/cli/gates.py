"""`gates`: caps, rates and conditions that hold ready jobs back, and how an operator overrides them.

An operator's number overrides that of the queue's spec until it is reset. A release lets a number of jobs pass a
condition once; a surplus is not saved for later jobs.
"""

from argparse import ArgumentParser, ArgumentTypeError

from forebay.cli.actions import record_action
from forebay.cli.argtypes import count
from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import OK
from forebay.core.gate import checked_gate, condition_gate, has_gate
from forebay.core.humanize import many
from forebay.core.limits import MAX_BATCH, MAX_PARKED, MAX_SLOTS
from forebay.core.policy import Until, terms_of
from forebay.core.spec import QueueSpec
from forebay.explain import gates_of
from forebay.store.protocol import GateUse, Store


def _ls_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="only the gates of this queue (default: all)")
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="at most N (default: 50)")


def _ls(call: Invocation) -> int:
    with call.store() as store:
        gates = _gates(store, call.args.queue, call.args.limit + 1)
    shown = gates[: call.args.limit]
    for gate in shown if call.screen.as_json else ():
        call.screen.emit(gate)
    if call.screen.as_json:
        return OK
    if not shown:
        call.screen.note("no gate is in use: no running job uses a slot, and no operator has set one")
        return OK
    rows = [(each.name, each.slots, each.used, _parked(each), _given(each)) for each in shown]
    call.screen.table(("gate", "slots", "used", "parked", ""), rows, "slots used parked")
    if len(gates) > len(shown):
        call.screen.note("there are more; raise --limit, or give a queue")
    return OK


def _parked(gate: GateUse) -> str:
    return f"{gate.parked:,}{'+' if gate.parked >= MAX_PARKED else ''}"


def _given(gate: GateUse) -> str:
    return "" if gate.given is None else f"set to {gate.given} by an operator"


def _gates(store: Store, queue: str | None, maximum: int) -> list[GateUse]:
    if queue is not None:
        return gates_of(store, _spec(store, queue), maximum)
    found: list[GateUse] = []
    while len(found) < maximum:
        page = store.gates(found[-1].name if found else "", min(maximum - len(found), MAX_BATCH))
        if not page:
            break
        found += page
    return found


def _spec(store: Store, queue: str) -> QueueSpec:
    return next((spec for spec in store.specs() if spec.name == queue), QueueSpec(name=queue))


def _slots(text: str) -> int | None:
    if text == "default":
        return None
    if not text.isascii() or not text.isdigit() or int(text) > MAX_SLOTS:
        raise ArgumentTypeError(f"{text!r} is not in 0 … {MAX_SLOTS}; 0 closes the gate, `default` resets it")
    return int(text)


def _set_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("gate", metavar="GATE", help="the gate's name, as shown by `forebay gates ls`")
    parser.add_argument(
        "slots",
        metavar="SLOTS",
        type=_slots,
        help="jobs at once; 0 closes the gate; `default` restores the spec's number",
    )


def _set(call: Invocation) -> int:
    name, slots = checked_gate(call.args.gate), call.args.slots
    with call.store() as store:
        if not any(has_gate(spec, name) for spec in store.specs()):
            call.screen.note(f"no configured queue has the gate {name}; the number applies once one does")
        store.set_gate(name, slots)
        record_action(store, "gates set", name, slots=slots)
    if call.screen.as_json:
        call.screen.emit({"gate": name, "slots": slots})
    else:
        words = "has the slots of its queue's spec" if slots is None else f"has {many(slots, 'slot')}"
        call.screen.say(f"{name} {'is closed' if slots == 0 else words}")
    return OK


def _release_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("condition", metavar="CONDITION", help="the condition of an `Until`")
    parser.add_argument("--value", metavar="VALUE", help="for a condition per tenant, kind or subject: which one")
    parser.add_argument("--count", type=count, default=1, metavar="N", help="how many jobs to release (default: 1)")


def _release(call: Invocation) -> int:
    condition, value, left, passed = call.args.condition, call.args.value, call.args.count, 0
    with call.store() as store:
        while left > 0:
            some = store.release(condition, min(left, MAX_BATCH), value)
            passed, left = passed + some, left - some
            if some < MAX_BATCH:
                break
        name = condition_gate(condition, value)
        record_action(store, "gates release", name, passed=passed)
        known = sorted({term.condition for spec in store.specs() for term in _conditions(spec)})
    if condition not in known:
        call.screen.note(f"no queue waits for {condition!r}; conditions: {', '.join(known) or 'none'}")
    if call.screen.as_json:
        call.screen.emit({"condition": condition, "value": value, "released": passed})
    else:
        call.screen.say(f"{many(passed, 'job')} passed {name}")
    return OK


def _conditions(spec: QueueSpec) -> list[Until]:
    return [term for term in terms_of(spec.eligibility) if isinstance(term, Until)]


COMMANDS = (
    CommandGroup(
        "gates",
        "list, set and release the gates that hold ready jobs back",
        (
            Command(
                "ls",
                "list the gates in use: slots, how many are used, and jobs parked",
                _ls,
                """
forebay gates ls
forebay gates ls mail --json | jq 'select(.used >= .slots)'
""",
                _ls_arguments,
            ),
            Command(
                "set",
                "override the slots of a gate",
                _set,
                """
forebay gates set cap/mail 20
forebay gates set rate/@payments 0
forebay gates set cap/mail default
""",
                _set_arguments,
            ),
            Command(
                "release",
                "release the first jobs that wait for a condition",
                _release,
                """
forebay gates release checked-in --count 20
forebay gates release paid --value ada
""",
                _release_arguments,
            ),
        ),
    ),
)
