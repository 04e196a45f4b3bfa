"""The jobs of a seed, in plain Python: the very jobs that `forebay gen` makes on Spark of the same seed. Pure.

Everything about a job is a function of (seed, seq): its kind, how long it takes, how often it fails first. A `Mix` says
how many of a hundred are of which kind:

    fast       1 … 5 ms                             poison     always fails; three attempts
    slow       200 ms … 2 s                         long       `LONG_MS`: longer than a lease of the lab
    flapping   fails `fails` times, then succeeds   dependent  fails while the dependency is down; 1 … 5 ms
    idle       does nothing                         email      does nothing; its payload has about a hundred bytes
    timed      records how late it starts           delayed    the same, due half a second to 1.5 s after the call
    flaky      an email; one in twenty fails its first attempt

`scale` stretches or shrinks every length. The draws are XXH64 as Spark chains it over (seed, purpose, seq), so that a
backlog that was seeded by one can be audited by the other.
"""

import re
from functools import lru_cache
from typing import Final

from msgspec import Struct
from xxhash import xxh64_intdigest

from forebay.core.errors import Invalid
from forebay.core.job import Draft
from forebay_proof.load.payloads import DISTINCT, distinct_payloads, payloads

KINDS: Final = ("fast", "slow", "flapping", "poison", "long", "dependent", "idle", "email", "flaky", "timed", "delayed")
MAX_ATTEMPTS: Final = {"poison": 3}
LONG_MS: Final = 7_000
MAX_SEQ: Final = 2**48
_INSTANT: Final = ("idle", "email", "flaky", "timed", "delayed")

_EMPTY_CHAIN: Final = 42
"""Spark's hash of no columns."""


@lru_cache
def _chain_start(seed: int, purpose: bytes) -> int:
    """The part of the hash that all jobs of a seed share. Spark takes a literal seed as 32 bits where it fits."""
    width = 4 if -(2**31) <= seed < 2**31 else 8
    begin = xxh64_intdigest((seed & 2 ** (8 * width) - 1).to_bytes(width, "little"), _EMPTY_CHAIN)
    return xxh64_intdigest(purpose, begin)


def draw(seed: int, purpose: bytes, seq: int, sides: int) -> int:
    """A number below `sides`; the draws of different purposes are independent."""
    value = xxh64_intdigest(seq.to_bytes(8, "little"), _chain_start(seed, purpose))
    return (value - 2**64 if value >> 63 else value) % sides


class Mix(Struct, frozen=True):
    """Of a hundred jobs, so many of each kind, in this order; `scale` of their lengths."""

    shares: tuple[tuple[str, int], ...]
    scale: float = 1.0

    def __post_init__(self) -> None:
        for kind, share in self.shares:
            if kind not in KINDS:
                raise Invalid("mix", f"{kind!r} is no kind of the lab", f"use {', '.join(KINDS)}")
            if type(share) is not int or not 0 < share <= 100:
                raise Invalid("mix", f"{share!r} is not a share of {kind}", "give whole numbers that add up to 100")
        if sum(share for _, share in self.shares) != 100:
            raise Invalid("mix", "its shares do not add up to 100", "write it like fast=95,poison=5")
        if not 0 <= self.scale <= 1_000:
            raise Invalid("scale", f"{self.scale} is not within 0 … 1000", "1 is as the mix says, 0 does not wait")

    @property
    def name(self) -> str:
        """Of its results: `s1`, `s1-0.1`, `fast-95-poison-5`."""
        known = (name for name, mix in MIXES.items() if mix.shares == self.shares)
        name = next(known, "-".join(f"{kind}-{share}" for kind, share in self.shares))
        return name if self.scale == 1 else f"{name}-{self.scale:g}"

    def kind(self, seed: int, seq: int) -> str:
        drawn = draw(seed, b"kind", seq, 100) if len(self.shares) > 1 else 0
        for kind, share in self.shares:
            drawn -= share
            if drawn < 0:
                return kind
        raise AssertionError("the shares add up to 100")

    def ms(self, kind: str, seed: int, seq: int) -> float:
        """How long its handler takes."""
        if kind == "slow":
            length = 200 + draw(seed, b"ms", seq, 1_801)
        elif kind == "long":
            length = LONG_MS
        elif kind in _INSTANT:
            length = 0
        else:
            length = 1 + draw(seed, b"ms", seq, 5)
        return length if self.scale == 1 else round(length * self.scale, 3)

    def draft(self, seed: int, seq: int, queue: str, *, key: bool = False, call_at: float = 0.0) -> Draft:
        """The job; with `key`, one that can be enqueued again. `call_at`: for kinds that record how late they start."""
        kind = self.kind(seed, seq)
        name = f"{seed}-{seq}" if key else None
        if kind in ("email", "flaky"):
            return Draft(kind, {**distinct_payloads()[seq % DISTINCT], "seq": seq}, queue, key=name)
        if kind in ("timed", "delayed"):
            due = call_at if kind == "timed" else call_at + 0.5 + draw(seed, b"due", seq, 1_000_000) / 1e6
            run_at = None if kind == "timed" else int(due * 1e6)
            return Draft(kind, {"seq": seq, "due": due}, queue, key=name, run_at=run_at)
        payload: dict[str, float] = {"seq": seq, "ms": self.ms(kind, seed, seq)}
        if kind == "flapping":
            payload["fails"] = 1 + draw(seed, b"fails", seq, 3)
        return Draft(kind, payload, queue, key=name, max_attempts=MAX_ATTEMPTS.get(kind))

    def __str__(self) -> str:
        shares = ",".join(f"{kind}={share}" for kind, share in self.shares)
        return shares if self.scale == 1 else f"{shares}@{self.scale:g}"


MIXES: Final = {
    "s1": Mix((("fast", 70), ("slow", 20), ("flapping", 5), ("poison", 5))),
    "fast": Mix((("fast", 100),)),
    "idle": Mix((("idle", 100),)),
    "slow": Mix((("slow", 100),)),
    "long": Mix((("fast", 90), ("long", 10))),
    "poison": Mix((("fast", 95), ("poison", 5))),
    "dependent": Mix((("fast", 95), ("dependent", 5))),
    "email": Mix((("email", 100),)),
    "flaky": Mix((("flaky", 100),)),
    "timed": Mix((("timed", 100),)),
    "delayed": Mix((("delayed", 100),)),
}
S1, FAST, EMAIL = MIXES["s1"], MIXES["fast"], MIXES["email"]
_SHARES: Final = re.compile(r"([a-z]+)=([0-9]{1,3})")


def email_drafts(count: int, *, unlike: bool = False) -> list[Draft]:
    """`email` jobs of the default queue; `unlike` their neighbours, so that no two of them can share a row."""
    return [
        Draft("email", payload, max_attempts=24 + number % 2 if unlike else None)
        for number, payload in enumerate(payloads(count))
    ]


def parse_mix(text: str, scale: float = 1.0) -> Mix:
    """The name of a mix, or shares such as `fast=95,poison=5`; `@0.1` at its end is its scale."""
    words, _, given = text.partition("@")
    if given:
        try:
            scale = float(given)
        except ValueError:
            raise Invalid("mix", f"{given!r} is no scale", "write it like s1@0.1") from None
    if words in MIXES:
        return Mix(MIXES[words].shares, scale)
    parts = [_SHARES.fullmatch(word.strip()) for word in words.split(",")]
    if not all(parts):
        raise Invalid("mix", f"{words!r} is not known", f"use {', '.join(MIXES)}, or shares such as fast=95,poison=5")
    return Mix(tuple((part[1], int(part[2])) for part in parts if part), scale)
