"""Who gives way in a full queue: jobs of queues that shed are marked, and two small indexes have them in order."""

from collections.abc import Collection, Sequence
from typing import Final

from forebay.core.event import Entry
from forebay.core.ledger import Change
from forebay.core.policy import Shed
from forebay.core.rank import rank_at
from forebay.core.shedding import GAVE_WAY, victims
from forebay.store.sqlite.graves import bury
from forebay.store.sqlite.queries import statement
from forebay.store.sqlite.row import id_list, rows_of
from forebay.store.sqlite.turn import Turn

_RESTING: Final = {"oldest": statement("oldest"), "lowest": statement("lowest")}
_MARK: Final = statement("mark_sheds")
_MARK_ALL: Final = statement("mark_all_sheds")


def give_way(
    turn: Turn, queue: str, shed: Shed, excess: int, arriving: Sequence[Entry], spared: Collection[int]
) -> bool:
    """Let so many die to make room, if they are there to be had; those who are spared are not."""
    found = rows_of(turn.connection.execute(_RESTING[shed.who], (queue, excess + len(spared))))
    resting = {row.id: row for row in found if row.id not in spared}
    places = [(rank_at(entry.rank_base, entry.rank_timed, entry.due_at, turn.now), entry.id) for entry in arriving]
    doomed = victims(shed, excess, ((row.rank, row.id) for row in resting.values()), places)
    if doomed is not None:
        bury(turn, [resting[job_id] for job_id in doomed], GAVE_WAY, Change.SHED)
    return doomed is not None


def mark(turn: Turn, entries: Sequence[Entry]) -> None:
    """New jobs of queues that shed are known as such."""
    turn.connection.execute(_MARK, (id_list(entry.id for entry in entries),))


def mark_all(turn: Turn, queue: str) -> None:
    """The queue sheds from now on: so do the jobs that it has."""
    turn.connection.execute(_MARK_ALL, (queue,))
