"""The states of a job by their number in tables and scripts; the numbers are part of the schemas."""

from typing import Final

from forebay.core.job import State

STATES: Final = tuple(State)

WAITING, READY, RUNNING, DONE, DEAD, CANCELLED = range(len(STATES))
