"""What all queues are given: payloads of about a hundred bytes that do not compress away. Standard library only."""

import random
from itertools import cycle, islice
from typing import Final

BATCH: Final = 100
BULK: Final = 1_000
_DIFFERENT: Final = 1_000


def payloads(count: int) -> "list[dict[str, str | int]]":
    """The same ones in every process."""
    source = random.Random(7)
    made: list[dict[str, str | int]] = [
        {"seq": number, "to": "ada@example.com", "data": source.randbytes(28).hex()} for number in range(_DIFFERENT)
    ]
    return list(islice(cycle(made), count))
