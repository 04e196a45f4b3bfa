"""Celery in `bench.recovery`: `put JOBS`; the worker is `celery worker`."""

import os
import sys
from typing import Any

from celery import Celery  # type: ignore[import-not-found,import-untyped,unused-ignore]

from forebay_proof.bench.killed.nap import URL, nap

app: Any = Celery("bench", broker=os.environ[URL])
task = app.task(name="nap")(nap)

if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        task.delay(number)
