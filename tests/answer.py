"""What one run of the command line gave."""

import json
from collections.abc import Callable
from typing import Any


class Answer:
    """Its code and what it wrote."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Answer]
