"""The payload of an `email` job: about a hundred bytes that do not compress away. Standard library only."""

import random
from functools import cache
from itertools import cycle, islice
from typing import Final

BATCH: Final = 100
BULK: Final = 1_000
DISTINCT: Final = 1_000
"""Payloads that differ; they repeat after that."""

Payload = dict[str, "str | int"]


@cache
def distinct_payloads() -> list[Payload]:
    """The same ones in every process."""
    source = random.Random(7)
    return [{"seq": seq, "to": "ada@example.com", "data": source.randbytes(28).hex()} for seq in range(DISTINCT)]


def payloads(count: int) -> list[Payload]:
    return list(islice(cycle(distinct_payloads()), count))
