"""Forebay in `bench.recovery`: `put JOBS`; the worker is `forebay worker`."""

import sys

from forebay import Draft, Forebay
from forebay_proof.bench.killed import nap as naps

fb = Forebay()


@fb.job
def nap(number: int) -> None:
    naps.nap(number)


if __name__ == "__main__":
    fb.enqueue_many(Draft("nap", {"number": number}) for number in range(int(sys.argv[2])))
