"""Who gives way in a full queue. The store offers who rests there, in order; who runs is never among them."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from forebay.core.outcome import SHED, Failure
from forebay.core.policy import Shed

GAVE_WAY: Final = Failure(SHED, "it gave way to newer work in a full queue")

Place = tuple[int, int]
"""The rank of a job and its id: what is smaller goes first."""


def victims(shed: Shed, excess: int, resting: Iterable[Place], arriving: Sequence[Place]) -> list[int] | None:
    """Ids of the `excess` jobs that die; None: there is no room to be made, and the call is refused.

    `resting` are those who wait or are ready: for the oldest by their ids, for the lowest the last in rank first. Not
    more of them are looked at than needed. The lowest of all may be somebody who arrives: then nobody dies for him.
    """
    offered = list(islice(resting, excess))
    if len(offered) < excess:
        return None
    if shed.who == "lowest" and arriving and max(arriving) > offered[-1]:
        return None
    return [job_id for _, job_id in offered]
