"""Weighted shares by virtual time: each class has one number, its turn, and the class with the smallest turn is next.

A start moves the turn of its class on by 1/weight, so in any stretch in which two classes have work their starts differ
from their weights by one quantum at most. A class that had no work is lifted to the turn of the class that started
last: idle time is not saved up. Deterministic; no clock, no randomness, nothing to rotate.
"""

from typing import Final

UNIT: Final = 720_720_000
"""What one start costs a class of weight 1: divisible by every weight up to 16, exact to 0.0001 % for the others."""


def turn_after(turn: int, weight: int, starts: int = 1) -> int:
    """The turn of a class after this many starts."""
    return turn + starts * (UNIT // weight)


def lifted(turn: int, current: int) -> int:
    """The turn of a class that has work again; `current` is that of the class that started last."""
    return max(turn, current)
