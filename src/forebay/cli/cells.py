"""`cells`: the stores behind a file of cells, and what each holds."""

from msgspec import Struct

from forebay.cli.command import Call, Command, Group
from forebay.cli.exits import FAILED, OK
from forebay.core.errors import Invalid, StoreFailed
from forebay.store.protocol import Cellular, Store, Totals


class CellState(Struct, frozen=True):
    """A cell and its jobs, as it is shown. `down`: why it does not answer."""

    cell: str
    store: str
    queues: int = 0
    depth: int = 0
    done: int = 0
    dead: int = 0
    down: str = ""


def _ls(call: Call) -> int:
    with call.store() as store:
        if not isinstance(store, Cellular):
            raise Invalid("store", "it has no cells", "name a file of cells: --store cells:cells.toml")
        states = [_state(name, cell) for name, cell in store.cells().items()]
    for state in states if call.screen.as_json else ():
        call.screen.emit(state)
    if not call.screen.as_json:
        rows = [(each.cell, each.store, each.queues, each.depth, each.done, each.dead, each.down) for each in states]
        call.screen.table(("cell", "store", "queues", "depth", "done", "dead", ""), rows, "queues depth done dead")
    return FAILED if any(state.down for state in states) else OK


def _state(name: str, cell: Store) -> CellState:
    kind = cell.capabilities.name
    try:
        found: Totals = cell.totals(1)
    except StoreFailed as error:
        return CellState(name, kind, down=error.reason)
    depth = found.waiting + found.ready + found.running
    return CellState(name, kind, found.queues, depth, found.done, found.dead)


COMMANDS = (
    Group(
        "cells",
        "list the cells of a file of cells",
        (
            Command(
                "ls",
                "list the cells with their queues and jobs; exit code 1 if one does not answer",
                _ls,
                """
forebay cells ls --store cells:cells.toml
forebay cells ls --json | jq 'select(.down != "")'
""",
            ),
        ),
    ),
)
