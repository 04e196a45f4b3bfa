"""Orders of the engine."""

from collections.abc import Iterator
from itertools import islice

from forebay.engine.order import Key, merged


def test_a_merge_begins_only_the_walks_that_are_next() -> None:
    """A start may be too early, as that of a lane which lost its head; a walk may have nothing at all."""
    begun: list[str] = []
    walks = {"a": [(1, 1), (1, 4), (9, 9)], "b": [(5, 5)], "c": [(1, 2)], "d": [], "e": [(6, 6)]}
    starts: list[tuple[Key, str]] = [((6, 6), "e"), ((1, 3), "b"), ((1, 1), "a"), ((1, 2), "c"), ((1, 0), "d")]

    def walk(name: str) -> Iterator[tuple[int, int]]:
        begun.append(name)
        return iter(walks[name])

    assert list(islice(merged(starts, walk), 4)) == [(1, 1), (1, 2), (1, 4), (5, 5)]
    assert begun == ["d", "a", "c", "b"]
    assert list(merged(starts, walk))[4:] == [(6, 6), (9, 9)]
