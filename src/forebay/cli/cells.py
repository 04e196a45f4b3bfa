"""`cells`: the stores behind a file of cells, what each holds, and moves between them."""

import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from forebay.cli.command import Command, CommandGroup, Invocation
from forebay.cli.exits import FAILED, OK, CommandFailed
from forebay.cli.resolve_store import error_text
from forebay.core.errors import ForebayError, Invalid, StoreFailed
from forebay.core.humanize import format_duration, many
from forebay.store.open import CellLedger, cell_ledgers, open_store
from forebay.store.protocol import Cellular, Store, Totals

if TYPE_CHECKING:
    from forebay.store.cells.moving import Mover, MoveState
    from forebay.store.cells.store import CellsStore

_POLL_SECONDS: Final = 1.0


class CellState(Struct, frozen=True):
    """A cell and its jobs, as it is shown. `down`: why it does not answer. `moves`: queues that leave it."""

    cell: str
    store: str
    queues: int = 0
    depth: int = 0
    done: int = 0
    dead: int = 0
    down: str = ""
    moves: tuple[str, ...] = ()


@contextmanager
def _opened(call: Invocation) -> "Iterator[CellsStore]":
    with call.store() as store:
        if not isinstance(store, Cellular):
            raise Invalid("store", "it has no cells", "name a file of cells: --store cells:cells.toml")
        from forebay.store.cells.store import CellsStore

        assert isinstance(store, CellsStore)
        yield store


def _mover(store: "CellsStore") -> "Mover":
    from forebay.store.cells.moving import Mover

    return Mover(store.backend.group)


def _ls(call: Invocation) -> int:
    try:
        with _opened(call) as store:
            moves = _moves(store)
            states = [_state(name, cell, tuple(moves.get(name, ()))) for name, cell in store.cells().items()]
    except CommandFailed:
        states = [_state_alone(cell) for cell in cell_ledgers(call.url)]
        if not any(state.down for state in states):
            raise
    for state in states if call.screen.as_json else ():
        call.screen.emit(state)
    if not call.screen.as_json:
        rows = [
            (each.cell, each.store, each.queues, each.depth, each.done, each.dead, each.down or ", ".join(each.moves))
            for each in states
        ]
        call.screen.table(("cell", "store", "queues", "depth", "done", "dead", ""), rows, "queues depth done dead")
    return FAILED if any(state.down for state in states) else OK


def _moves(store: "CellsStore") -> dict[str, list[str]]:
    """What moves, by the cell that it leaves."""
    cells, moves = store.backend.group.map, dict[str, list[str]]()
    for queue in sorted(cells.moves):
        if (move := cells.move(queue)) is not None:
            moves.setdefault(move.source, []).append(f"{queue} → {move.target} ({move.step})")
    return moves


def _state_alone(cell: CellLedger) -> CellState:
    """A cell while another one does not answer, so that nothing is routed."""
    try:
        store = open_store(cell.url)
    except ForebayError as error:
        return CellState(cell.name, urlsplit(cell.url).scheme, down=error_text(error, cell.url))
    with closing(store):
        state = _state(cell.name, store, ())
    return replace(state, queues=max(0, state.queues - 1))


def _state(name: str, cell: Store, moves: tuple[str, ...]) -> CellState:
    kind = cell.capabilities.name
    try:
        found: Totals = cell.totals(1)
    except StoreFailed as error:
        return CellState(name, kind, down=error.reason)
    depth = found.waiting + found.ready + found.running
    return CellState(name, kind, found.queues, depth, found.done, found.dead, moves=moves)


def _add(call: Invocation) -> int:
    with _opened(call) as store:
        _mover(store).add(call.args.cell)
        call.screen.note(f"cell {call.args.cell} is in version {store.backend.group.map.version} of the map")
    return OK


def _move(call: Invocation) -> int:
    args = call.args
    with _opened(call) as store:
        mover = _mover(store)
        if args.partition:
            if len(args.queues) != 1 or args.source is not None:
                raise Invalid("--partition", "partitions of one queue move, from any cell", "name one queue, no --from")
            mover.split(args.queues[0], args.partition, args.target)
            numbers = ", ".join(map(str, args.partition))
            call.screen.note(f"{args.queues[0]}: new jobs of partition {numbers} go to cell {args.target}")
            return OK
        if args.source is None:
            raise Invalid("--from", "it is missing", "name the cell that the queues leave, or some --partition")
        mover.start(args.queues, args.source, args.target, allow_over=args.allow_over)
        return _follow(call, mover, lambda: None)


def _drain(call: Invocation) -> int:
    with _opened(call) as store:
        mover = _mover(store)

        def drain() -> None:
            mover.drain(call.args.cell, call.args.target, allow_over=call.args.allow_over)

        drain()
        return _follow(call, mover, drain)


def _follow(call: Invocation, mover: "Mover", again: Callable[[], None]) -> int:
    """Take the steps of all moves, and show them, until no source has an unfinished job; once with --no-wait."""
    shown: list[MoveState] = []
    while True:
        states = mover.advance()
        for state in states:
            if state not in shown:
                _show(call, state)
        shown = states
        if call.args.no_wait or not any(state.unfinished for state in states):
            break
        time.sleep(_POLL_SECONDS)
        again()
    if not states:
        call.screen.note("nothing is left to move")
    return OK


def _show(call: Invocation, state: "MoveState") -> None:
    if call.screen.as_json:
        call.screen.emit(state)
        return
    waiting = f" ({state.waiting:,} waiting)" if state.waiting else ""
    counts = f"{many(state.unfinished, 'job')} unfinished{waiting} and {state.kept:,} kept in {state.source}"
    left = state.step == "leaving" and state.unfinished + state.kept == 0
    keys = f"; its keys count there for {format_duration(state.window)} after it was closed" if left else ""
    call.screen.say(f"{state.queue} {state.source} → {state.target}: {state.step}, {counts}{keys}")


def _target_argument(parser: ArgumentParser) -> None:
    parser.add_argument("--to", dest="target", metavar="CELL", required=True, help="the cell that takes new jobs")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the jobs of the source")
    parser.add_argument(
        "--allow-over", action="store_true", help="move bounded queues, which may be above their bound meanwhile"
    )


def _move_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("queues", metavar="QUEUE", nargs="+", help="queues that move together")
    parser.add_argument("--from", dest="source", metavar="CELL", help="the cell that they leave")
    parser.add_argument(
        "--partition", metavar="N", type=int, action="append", help="only this partition, while its cell keeps others"
    )
    _target_argument(parser)


def _drain_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("cell", metavar="CELL", help="the cell that all queues leave")
    _target_argument(parser)


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("cell", metavar="CELL", help="a cell of the file that the agreed map does not have yet")


COMMANDS = (
    CommandGroup(
        "cells",
        "list the cells of a file of cells, and move queues between them",
        (
            Command(
                "ls",
                "list the cells with their queues, jobs and moves; exit code 1 if one does not answer",
                _ls,
                """
forebay cells ls --store cells:cells.toml
forebay cells ls --store cells:cells.toml --json | jq 'select(.down != "")'
""",
            ),
            Command(
                "add",
                "agree on a cell that has been added to the file",
                _add,
                """
forebay cells add c --store cells:cells.toml
""",
                _add_arguments,
            ),
            Command(
                "move",
                "move queues to another cell; repeat the command to go on after an interruption",
                _move,
                """
forebay cells move mail --from a --to b --store cells:cells.toml
forebay cells move orders --partition 3 --to c --store cells:cells.toml
""",
                _move_arguments,
            ),
            Command(
                "drain",
                "move all queues of a cell to another one; repeat the command to go on after an interruption",
                _drain,
                """
forebay cells drain a --to b --store cells:cells.toml
""",
                _drain_arguments,
            ),
        ),
    ),
)
