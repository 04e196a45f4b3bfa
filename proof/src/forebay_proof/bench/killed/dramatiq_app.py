"""Dramatiq in `bench.recovery`: `put JOBS`; the worker is `dramatiq`."""

import os
import sys
from typing import Any

import dramatiq  # type: ignore[import-not-found,unused-ignore]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found,unused-ignore]

from forebay_proof.bench.killed.nap import URL, nap

broker: Any = RedisBroker(url=os.environ[URL])
dramatiq.set_broker(broker)
actor: Any = dramatiq.actor(nap)

if __name__ == "__main__":
    for number in range(int(sys.argv[2])):
        actor.send(number)
