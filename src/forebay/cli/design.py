"""`design`: five questions, or five flags, become a queue spec: its vector, its commit point, the Python and the JSON
to paste, how such queues fail, and what to monitor. A contradictory combination is refused with the reason.
"""

import sys
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

import msgspec
from msgspec import Struct

from forebay.cli.axes import AXES, Fields
from forebay.cli.command import Command, Invocation
from forebay.cli.exits import OK
from forebay.core.errors import Invalid
from forebay.core.hazards import hazards
from forebay.core.instant import days, hours, minutes, ms, seconds
from forebay.core.named import NAMED
from forebay.core.policy import All
from forebay.core.spec import QueueSpec

_FIELDS = ("retention", "selection", "share", "merge", "unique", "eligibility", "routing", "fan_out", "capacity")
_UNITS = (("days", days(1)), ("hours", hours(1)), ("minutes", minutes(1)), ("seconds", seconds(1)), ("ms", ms(1)))


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--name", help="the queue's name (default: prompt, else default)")
    parser.add_argument("--like", choices=sorted(NAMED), metavar="NAME", help=f"start from {', '.join(NAMED)}")
    for axis in AXES:
        parser.add_argument(f"--{axis.flag}", metavar="ANSWER", help=f"{axis.question} {axis.answers}")


def _design(call: Invocation) -> int:
    args = call.args
    given = {axis.flag: getattr(args, axis.flag) for axis in AXES if getattr(args, axis.flag) is not None}
    name, fields = args.name or "default", _like(args.like)
    if given or args.like:
        for axis in AXES:
            if axis.flag in given:
                fields |= axis.parse(given[axis.flag])
    else:
        name = args.name or _asked("What is the queue's name?", "a name such as mail", "default") or "default"
        fields |= _interview()
    spec = QueueSpec(name=name, **fields)
    likes = resembling(spec)
    if call.screen.as_json:
        failures = [
            {"like": like, "fails_by": NAMED[like].fails_by, "contained_by": NAMED[like].contained_by} for like in likes
        ]
        call.screen.emit(
            {
                "vector": spec.vector(),
                "commit_point": spec.commit_point,
                "spec": msgspec.to_builtins(spec),
                "python": source(spec),
                "failures": failures,
                "watch": [{"fails_by": each.fails_by, "watch": each.watch} for each in hazards(spec)],
            }
        )
    else:
        _show(call, spec, likes)
    return OK


def _like(name: str | None) -> Fields:
    if name is None:
        return {}
    spec = NAMED[name]("default")
    return {field: getattr(spec, field) for field in _FIELDS}


def _interview() -> Fields:
    """Ask the five questions; an invalid answer is asked again, an empty one takes the default."""
    fields: Fields = {}
    for axis in AXES:
        while True:
            answer = _asked(axis.question, axis.answers, axis.usual)
            try:
                fields |= axis.parse(answer or axis.usual)
                break
            except Invalid as error:
                if not sys.stdin.isatty():
                    raise
                sys.stderr.write(f"  {error}\n")
    return fields


def _asked(question: str, answers: str, usual: str) -> str:
    sys.stderr.write(f"{question}\n  {answers}\n  [{usual}] ")
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    if not sys.stdin.isatty():
        sys.stderr.write("\n")
    return answer


def _show(call: Invocation, spec: QueueSpec, likes: list[str]) -> None:
    screen = call.screen

    def title(text: str) -> None:
        screen.say(screen.paint(text, "bold"))

    title("vector")
    screen.say(f"  {spec.vector()}\n")
    title("commit point")
    screen.say(f"  {spec.commit_point}\n")
    title("how such queues fail, and what prevents it here")
    for like in likes:
        screen.say(f"  {like}: {NAMED[like].fails_by}\n    → {NAMED[like].contained_by}")
    screen.say()
    if found := hazards(spec):
        title("what to monitor")
        for each in found:
            screen.say(f"  {each.fails_by}\n    → {each.watch}")
        screen.say()
    title("Python")
    screen.say("".join(f"  {line}\n" if line else "\n" for line in source(spec).splitlines()))
    title("JSON, for forebay queues put")
    screen.say(f"  {spec.to_json().decode()}")


def resembling(spec: QueueSpec) -> list[str]:
    """The named queues that this one resembles, nearest first: those whose every non-default axis it shares."""
    plain = QueueSpec(name=spec.name)
    scores: dict[str, int] = {}
    shared = []
    for name, named in NAMED.items():
        other = named(spec.name)
        scores[name] = sum(_alike(getattr(spec, field), getattr(other, field)) for field in _FIELDS)
        odd = [field for field in _FIELDS if getattr(other, field) != getattr(plain, field)]
        if odd and all(
            getattr(spec, field) != getattr(plain, field) and _alike(getattr(spec, field), getattr(other, field))
            for field in odd
        ):
            shared.append(name)
    nearest = max(scores, key=lambda name: (scores[name], name == "work"))
    return list(dict.fromkeys([nearest, *sorted(shared, key=lambda name: -scores[name])]))[:4]


def _alike(one: object, other: object) -> int:
    return 2 if one == other else int(type(one) is type(other))


def source(spec: QueueSpec) -> str:
    """The spec as Python source."""
    policies: set[str] = set()
    units: set[str] = set()
    arguments = [
        f"    {field}={_written(value, policies, units)},\n"
        for field in (*_FIELDS, "key_window")
        if (value := getattr(spec, field)) != getattr(QueueSpec(name=spec.name), field)
    ]
    lines = ["from forebay import QueueSpec\n"]
    if units:
        lines.append(f"from forebay.core.instant import {', '.join(sorted(units))}\n")
    if policies:
        lines.append(f"from forebay.core.policy import {', '.join(sorted(policies))}\n")
    head = f'\nspec = QueueSpec(\n    name="{spec.name}",\n'
    return "".join([*lines, head, *arguments, ")\n"])


def _written(value: Any, policies: set[str], units: set[str]) -> str:
    if isinstance(value, timedelta):
        unit, size = next(((unit, size) for unit, size in _UNITS if value and not value % size), ("ms", ms(1)))
        units.add(unit)
        return f"{unit}({value / size:g})"
    if isinstance(value, All):
        return " & ".join(_written(term, policies, units) for term in value.terms)
    if isinstance(value, tuple):
        return f"({', '.join(_written(each, policies, units) for each in value)}{',' * (len(value) == 1)})"
    if not isinstance(value, Struct):
        return f'"{value}"' if isinstance(value, str) else repr(value)
    kind = type(value)
    policies.add(kind.__name__)
    arguments = [
        f"{field.name}={_written(given, policies, units)}"
        for field in msgspec.structs.fields(kind)
        if (given := getattr(value, field.name)) != field.default
        and (field.default_factory is msgspec.NODEFAULT or given != field.default_factory())
    ]
    return f"{kind.__name__}({', '.join(arguments)})"


COMMANDS = (
    Command(
        "design",
        "design a queue by five questions: vector, code, commit point, failure modes",
        _design,
        """
forebay design
forebay design --name mail --selection 'aging:1m + fair:tenant' --capacity bounded:100000:reject
forebay design --name orders --like fifo --eligibility in-order:block/subject --json
""",
        _arguments,
        takes_store=False,
    ),
)
