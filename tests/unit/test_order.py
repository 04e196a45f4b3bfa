"""Orders of the engine."""

from collections.abc import Iterator
from itertools import islice
from random import Random

import pytest

from forebay.engine.order import Key, Order, merged


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


@pytest.mark.parametrize("seed", range(20))
def test_a_thing_that_is_put_behind_others_says_so(seed: int) -> None:
    """So what is ordered by the first of these needs no new place."""
    random, keys = Random(seed), dict[str, Key]()
    order = Order(keys.__getitem__)
    seen: Key | None = None
    for number in range(200):
        name = random.choice("abcdef")
        if name in order and random.random() < 0.3:
            order.drop(name)
            continue
        keys[name] = (random.randrange(100) if name not in order else keys[name][0] + random.randrange(-20, 20), number)
        may_be_first = order.put(name)
        if may_be_first or seen is None:
            first = order.first()
            seen = None if first is None else keys[first]
        least = min((keys[each] for each in "abcdef" if each in order), default=None)
        assert seen is None or least is None or seen <= least
