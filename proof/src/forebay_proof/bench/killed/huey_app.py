"""Huey on SQLite in `bench.recovery`: `put JOBS`; the worker is `huey_consumer`."""

import os
import sys
from typing import Any

from huey import SqliteHuey  # type: ignore[import-not-found,unused-ignore]

from forebay_proof.bench.killed.nap import URL, nap

huey: Any = SqliteHuey(filename=os.environ[URL])
task: Any = huey.task()(nap)

if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        task(number)
