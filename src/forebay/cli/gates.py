"""`gates`: what holds ready jobs back (caps, rates, conditions), and how an operator opens or closes it.

An operator's number wins over that of the queue's spec until it is taken back; a release lets some jobs pass a
condition once, and saves nothing up for jobs that come later.
"""

from argparse import ArgumentParser, ArgumentTypeError

from forebay.cli.acts import noted
from forebay.cli.command import Call, Command, Group
from forebay.cli.exits import OK
from forebay.cli.words import count
from forebay.core.gate import checked_gate, condition_gate, has_gate
from forebay.core.limits import BATCH_MOST, SLOTS_MOST
from forebay.core.policy import Until, terms_of
from forebay.core.spec import QueueSpec
from forebay.core.words import many
from forebay.explain import gates_of
from forebay.store.protocol import GateUse, Store


def _ls_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="only the gates of this queue (default: all)")
    parser.add_argument("--limit", type=count, default=50, metavar="N", help="at most so many (default: 50)")


def _ls(call: Call) -> int:
    with call.store() as store:
        gates = _gates(store, call.args.queue, call.args.limit + 1)
    shown = gates[: call.args.limit]
    for gate in shown if call.screen.as_json else ():
        call.screen.emit(gate)
    if call.screen.as_json:
        return OK
    if not shown:
        call.screen.note("no gate is in use: no running job has a slot, and no operator set one")
        return OK
    rows = [(each.name, each.slots, each.used, _given(each)) for each in shown]
    call.screen.table(("gate", "slots", "used", ""), rows, "slots used")
    if len(gates) > len(shown):
        call.screen.note("there are more; --limit shows them, or name a queue")
    return OK


def _given(gate: GateUse) -> str:
    return "" if gate.given is None else f"an operator gave it {gate.given}"


def _gates(store: Store, queue: str | None, most: int) -> list[GateUse]:
    if queue is not None:
        return gates_of(store, _spec(store, queue), most)
    found: list[GateUse] = []
    while len(found) < most:
        page = store.gates(found[-1].name if found else "", min(most - len(found), BATCH_MOST))
        if not page:
            break
        found += page
    return found


def _spec(store: Store, queue: str) -> QueueSpec:
    return next((spec for spec in store.specs() if spec.name == queue), QueueSpec(name=queue))


def _slots(text: str) -> int | None:
    if text == "default":
        return None
    if not text.isascii() or not text.isdigit() or int(text) > SLOTS_MOST:
        raise ArgumentTypeError(f"{text!r} is no number of slots; write 0 to close it, or `default` to go back")
    return int(text)


def _set_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("gate", metavar="GATE", help="its name, as `forebay gates ls` shows it")
    parser.add_argument(
        "slots", metavar="SLOTS", type=_slots, help="so many at once; 0 closes it; default: as the spec says"
    )


def _set(call: Call) -> int:
    name, slots = checked_gate(call.args.gate), call.args.slots
    with call.store() as store:
        if not any(has_gate(spec, name) for spec in store.specs()):
            call.screen.note(f"no queue is declared whose jobs have the gate {name}; it counts once one is")
        store.set_gate(name, slots)
        noted(store, "gates set", name, slots=slots)
    if call.screen.as_json:
        call.screen.emit({"gate": name, "slots": slots})
    else:
        words = "has as many slots as its queue's spec says" if slots is None else f"has {many(slots, 'slot')}"
        call.screen.say(f"{name} {'is closed' if slots == 0 else words}")
    return OK


def _release_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("condition", metavar="CONDITION", help="the word of an `Until`")
    parser.add_argument("--value", metavar="VALUE", help="of a condition per tenant, kind or subject: which one")
    parser.add_argument("--count", type=count, default=1, metavar="N", help="let so many pass (default: 1)")


def _release(call: Call) -> int:
    condition, value, left, passed = call.args.condition, call.args.value, call.args.count, 0
    with call.store() as store:
        while left > 0:
            some = store.release(condition, min(left, BATCH_MOST), value)
            passed, left = passed + some, left - some
            if some < BATCH_MOST:
                break
        name = condition_gate(condition, value)
        noted(store, "gates release", name, passed=passed)
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
    Group(
        "gates",
        "look at what holds ready jobs back, and open or close it",
        (
            Command(
                "ls",
                "list the gates in use: slots, and how many running jobs use",
                _ls,
                """
forebay gates ls
forebay gates ls mail --json | jq 'select(.used >= .slots)'
""",
                _ls_arguments,
            ),
            Command(
                "set",
                "give a gate another number of slots, whatever the queue's spec says",
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
                "let the first ones that wait for a condition pass it",
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
