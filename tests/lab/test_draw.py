"""The jobs of a seed: always the same ones, in the shares that the mix says. tests/spark holds them against Spark's."""

from collections import Counter

import msgspec
import pytest

from forebay import Invalid
from forebay_proof.load.mix import LONG_MS, MIXES, S1, Mix, parse_mix

LENGTHS = {"fast": (1, 5), "slow": (200, 2_000), "flapping": (1, 5), "poison": (1, 5), "long": (LONG_MS, LONG_MS)}


def test_the_same_seed_makes_the_same_jobs_and_another_makes_others() -> None:
    first = [S1.draft(7, seq, "lab") for seq in range(200)]
    assert first == [S1.draft(7, seq, "lab") for seq in range(200)]
    assert first != [S1.draft(8, seq, "lab") for seq in range(200)]


def test_the_mix_is_what_it_says() -> None:
    kinds = Counter(S1.kind(7, seq) for seq in range(20_000))
    for kind, share in S1.shares:
        assert abs(kinds[kind] / 20_000 - share / 100) < 0.01, kinds


@pytest.mark.parametrize("name", sorted(LENGTHS))
def test_lengths_stay_in_their_bounds_and_reach_them(name: str) -> None:
    mix = Mix(((name, 100),))
    lengths = [mix.ms(name, 7, seq) for seq in range(10_000)]
    assert (min(lengths), max(lengths)) == LENGTHS[name]
    shorter = Mix(((name, 100),), scale=0.1)
    assert shorter.ms(name, 7, 5) == pytest.approx(0.1 * mix.ms(name, 7, 5))


def test_a_job_says_all_that_its_handler_needs() -> None:
    drafts = [S1.draft(7, seq, "lab", key=True) for seq in range(300)]
    assert {draft.kind for draft in drafts} == {"fast", "slow", "flapping", "poison"}
    for seq, draft in enumerate(drafts):
        assert draft.payload["seq"] == seq
        assert draft.key == f"7-{seq}"
        assert ("fails" in draft.payload) == (draft.kind == "flapping")
        assert (draft.max_attempts == 3) == (draft.kind == "poison")


def test_a_job_that_records_its_lateness_carries_the_instant_at_which_it_is_due() -> None:
    timed, delayed = (MIXES[name].draft(7, 3, "lab", call_at=1_000.0) for name in ("timed", "delayed"))
    assert (timed.payload, timed.run_at) == ({"seq": 3, "due": 1_000.0}, None)
    assert delayed.run_at == int(1e6 * delayed.payload["due"])
    assert all(
        1_000.5 <= MIXES["delayed"].draft(7, seq, "lab", call_at=1_000.0).payload["due"] < 1_001.5
        for seq in range(1_000)
    )


def test_every_email_has_its_own_number_and_about_a_hundred_bytes() -> None:
    bodies = [MIXES["email"].draft(7, seq, "lab").payload for seq in (0, 999, 1_000, 1_001)]
    assert [body["seq"] for body in bodies] == [0, 999, 1_000, 1_001]
    assert all(90 <= len(msgspec.json.encode(body)) <= 110 for body in bodies)


def test_a_mix_is_read_and_written_alike() -> None:
    assert parse_mix("s1") == S1
    assert parse_mix("fast=95, poison=5") == MIXES["poison"]
    for mix in (*MIXES.values(), Mix(S1.shares, 0.25)):
        assert parse_mix(str(mix)) == mix


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("fsat", "fsat"),
        ("fast=50", "add up to 100"),
        ("fast=50,sluggish=50", "sluggish"),
        ("fast=100,slow=0", "share of slow"),
        ("s1@often", "no scale"),
        ("s1@-1", "within 0"),
        ("", "is not known"),
    ],
)
def test_a_mix_that_makes_no_sense_is_refused(text: str, word: str) -> None:
    with pytest.raises(Invalid, match=word):
        parse_mix(text)
