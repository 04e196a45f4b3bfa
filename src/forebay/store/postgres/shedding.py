"""Who gives way in a full queue. The queue's row is locked, and it is bounded: those who rest there are looked through.

Claims take no such lock. Whoever is being claimed this moment counts as running, and the next one gives way.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from forebay.core.event import Entry
from forebay.core.ledger import Change
from forebay.core.policy import Shed
from forebay.core.rank import rank_at
from forebay.core.shedding import GAVE_WAY, victims
from forebay.store.postgres.base import Turn
from forebay.store.postgres.graves import bury
from forebay.store.postgres.queries import statement

_SPARE: Final = 1_000
"""More of them are looked at than needed: so many may be claimed this moment."""

_RESTING: Final = {"oldest": statement("oldest"), "lowest": statement("lowest")}
_HELD_STILL: Final = statement("held_still")
_DOOMED: Final = statement("doomed")
_TAKE_OUT: Final = "SELECT forebay.take_out(%s, %s)"


def give_way(
    turn: Turn, queue: str, shed: Shed, excess: int, arriving: Sequence[Entry], spared: Collection[int]
) -> int:
    """Let so many die to make room, if they are there to be had; how many did. Those who are spared do not."""
    looked_at = excess + len(spared) + _SPARE
    found = turn.fetch(_RESTING[shed.who], (queue, queue, queue, looked_at))
    singles, lasts = [row[0] for row in found], [row[1] for row in found]
    still = {tuple(row) for row in turn.fetch(_HELD_STILL, (singles, lasts))} if found else set()
    runs = [row for row in found if tuple(row) in still]
    jobs = {job_id: (rank, run) for run in runs for rank, job_id in _jobs(run, shed) if job_id not in spared}
    resting = ((rank, job_id) for job_id, (rank, _) in islice(jobs.items(), looked_at))
    places = [(rank_at(entry.rank_base, entry.rank_timed, entry.due_at, turn.now), entry.id) for entry in arriving]
    doomed = victims(shed, excess, resting, places)
    if doomed is None:
        return 0
    for job_id in doomed:
        single, last_id, *_ = jobs[job_id][1]
        if not single:
            # From the back a run gets shorter at its end, which is its name.
            turn.execute(_TAKE_OUT, (job_id if shed.who == "lowest" else last_id, job_id))
    bury(turn, turn.fetch(_DOOMED, (doomed,)), GAVE_WAY, Change.SHED)
    return excess


def _jobs(run: Sequence[Any], shed: Shed) -> Iterator[tuple[int, int]]:
    """The places of a run's jobs, in the order in which they give way."""
    _, last_id, n, rank = run
    ids = range(last_id, last_id - n, -1) if shed.who == "lowest" else range(last_id - n + 1, last_id + 1)
    return ((rank, job_id) for job_id in ids)
