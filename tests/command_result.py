"""The result of one run of the command line."""

import json
from collections.abc import Callable
from typing import Any


class CommandResult:
    """Exit code, standard output and standard error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., CommandResult]
