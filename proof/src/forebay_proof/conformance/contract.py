"""The shape of the contract: every verb with its parameters, by name, kind and default; the same of what is optional.

A verb that is there under its name but takes other parameters fails at its first caller, which may be a page that few
people open. So a store is compared with the protocols themselves, not with what other cases happen to call.
"""

from collections.abc import Iterator
from inspect import Parameter, getattr_static, isfunction, signature
from typing import Any, TypeAlias

from forebay.core.errors import Closed
from forebay.store.protocol import OPTIONAL, Store
from forebay_proof.conformance.case import case, refused
from forebay_proof.conformance.harness import Harness

Shape: TypeAlias = list[tuple[str, str, object]]


@case
def every_verb_takes_what_the_contract_says(h: Harness) -> None:
    wrong = [difference for verb in verbs_of(Store) for difference in _differences(h.store, Store, verb)]
    assert not wrong, "; ".join(wrong)


@case
def an_optional_interface_is_complete_or_absent(h: Harness) -> None:
    wrong = []
    for protocol in OPTIONAL:
        verbs = verbs_of(protocol)
        if any(hasattr(h.store, verb) for verb in verbs):
            wrong += [difference for verb in verbs for difference in _differences(h.store, protocol, verb)]
    assert not wrong, "; ".join(wrong)


@case
def a_store_has_no_verb_besides_the_contract(h: Harness) -> None:
    """What only one store can do is an optional protocol: a name, a text and a check."""
    known = {verb for protocol in (Store, *OPTIONAL) for verb in verbs_of(protocol)} | {"capabilities"}
    public = {name for name in dir(type(h.store)) if not name.startswith("_")}
    assert public <= known, f"not in the contract: {', '.join(sorted(public - known))}"


@case
def no_verb_works_on_a_store_that_is_closed(h: Harness) -> None:
    h.store.close()
    for read in (h.store.specs, h.store.schedules, h.store.ledger_rule, h.store.ledger_extent):
        refused(Closed, read)
    for call in (
        lambda: h.store.gates("", 1),
        lambda: h.store.ingested("lake"),
        lambda: h.store.ledger(-1, 1),
        lambda: h.store.trim_ledger(1),
        lambda: h.store.replace_dead([(1, h.draft())]),
    ):
        refused(Closed, call)


def verbs_of(protocol: Any) -> list[str]:
    return [name for name in dir(protocol) if not name.startswith("_") and isfunction(getattr_static(protocol, name))]


def _differences(store: Store, protocol: Any, verb: str) -> Iterator[str]:
    found = getattr(store, verb, None)
    if found is None:
        yield f"{verb} of {protocol.__name__} is missing"
        return
    requested, had = shape_of(getattr_static(protocol, verb))[1:], shape_of(found)
    if requested != had:
        yield f"{verb} takes {had}, the contract says {requested}"


def shape_of(function: Any) -> Shape:
    """Each parameter: its name, its kind, and its default."""
    return [(each.name, each.kind.name, _default(each)) for each in signature(function).parameters.values()]


def _default(parameter: Parameter) -> object:
    return "none" if parameter.default is Parameter.empty else repr(parameter.default)
