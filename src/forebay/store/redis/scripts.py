"""The scripts of the store: one for each verb, from the files in `lua/`, whose conventions are in `lua/keys.lua`.

A script is known to the server by its digest. What takes jobs in is refused by a server without memory, what lets them
out is not.
"""

import re
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

from msgspec import Struct

_VERB: Final = re.compile(r"^-- verb: (\w+)(?: \((.+)\))?\n", re.MULTILINE)
_NEEDS: Final = re.compile(r"^-- needs: (.+)\n", re.MULTILINE)
_LITERAL: Final = r"(?:\d+|'[^'\n]*')"
_CONSTANTS: Final = re.compile(rf"^ *local ([A-Z_]+(?:, [A-Z_]+)*) = ({_LITERAL}(?:, {_LITERAL})*)\n", re.MULTILINE)
_LUA: Final = files("forebay.store.redis") / "lua"


class Script(Struct, frozen=True):
    """One verb. `tokened`: the server keeps its answer, so a call may be repeated. `writes`: it may change keys."""

    name: str
    text: bytes
    digest: bytes
    tokened: bool
    writes: bool


class _Verb(Struct, frozen=True):
    """A verb as its file has it."""

    file: str
    modes: tuple[str, ...]
    needs: tuple[str, ...]
    body: str


@cache
def script(name: str) -> Script:
    verb = _verbs()[name]
    body = f"return once(function()\n{verb.body}end)\n" if "once" in verb.modes else verb.body
    parts = _with_values("\n".join((*_with_needs((*verb.needs, verb.file)), body)))
    text = f"#!lua{_flags(verb)}\n{parts}".encode()
    tokened = "once" in verb.modes or "token" in verb.modes
    return Script(
        name, text, sha1(text, usedforsecurity=False).hexdigest().encode(), tokened, "reads" not in verb.modes
    )


def names() -> tuple[str, ...]:
    return tuple(_verbs())


def _flags(verb: _Verb) -> str:
    if "reads" in verb.modes:
        return " flags=no-writes"
    return "" if "grows" in verb.modes else " flags=allow-oom"


def _with_needs(wanted: tuple[str, ...]) -> list[str]:
    """The libraries of these files behind those that they need."""
    found: dict[str, str] = {}

    def add(file: str) -> None:
        library = _split(file)[0]
        for needed in _NEEDS.findall(library):
            for other in needed.split():
                add(other)
        found.setdefault(file, library)

    for file in wanted:
        add(file)
    return list(found.values())


def _with_values(text: str) -> str:
    """Constants as their values.

    Every call creates the closures of the libraries, and Lua looks each captured name up in a list of all of them:
    without the constants that takes a quarter to a third less time.
    """
    values: dict[str, str] = {}
    for names, literals in _CONSTANTS.findall(text):
        for name, value in zip(names.split(", "), re.findall(_LITERAL, literals), strict=True):
            if values.setdefault(name, value) != value:
                raise LookupError(f"{name} is {values[name]} and {value}")
    names = "|".join(sorted(values, key=len, reverse=True))
    return re.sub(rf"(?<!['\w.])({names})(?!['\w])", lambda found: values[found[1]], _CONSTANTS.sub("", text))


@cache
def _split(file: str) -> tuple[str, dict[str, _Verb]]:
    """The library of a file, and its verbs."""
    library, *parts = _VERB.split((_LUA / f"{file}.lua").read_text("utf-8"))
    verbs = {}
    for name, notes, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        modes, _, needs = (notes or "").partition("needs ")
        verbs[name] = _Verb(file, tuple(modes.replace(",", " ").split()), tuple(needs.split()), body)
    return library, verbs


@cache
def _verbs() -> dict[str, _Verb]:
    found: dict[str, _Verb] = {}
    for path in sorted(_LUA.iterdir(), key=lambda path: path.name):
        verbs = _split(path.name.removesuffix(".lua"))[1]
        if twice := found.keys() & verbs.keys():
            raise LookupError(f"{path.name}: {', '.join(twice)} is there twice")
        found |= verbs
    return found
