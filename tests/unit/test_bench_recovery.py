"""What `bench recovery` makes of the notes of killed and restarted workers."""

from forebay_proof.bench.recovery import JOBS, KILL_AFTER, NEVER, Note, figures_of, outcome

KILLED_AT = 1_000.0 + KILL_AFTER


def notes(*lines: tuple[str, int, float]) -> list[Note]:
    return [Note(what, number, 1_000.0 + at) for what, number, at in lines]


def test_an_interrupted_job_that_starts_again_and_one_that_waited() -> None:
    found = outcome(
        notes(("start", 0, 0), ("start", 1, 0.5), ("start", 2, 4), ("start", 1, 6), ("end", 2, 7), ("end", 1, 9)),
        KILLED_AT,
        60,
    )
    ends = {"once": 2, "repeated": 0, "unfinished": JOBS - 2}
    assert found == {"again": 5.0, "waiting": 3.0, "interrupted": 2, "waited": JOBS - 2, **ends}


def test_what_comes_after_the_watch_does_not_count() -> None:
    late = notes(("start", 0, 0), ("start", 0, 62), ("end", 0, 65))
    found = outcome(late, KILLED_AT, 60)
    assert "again" not in found
    assert found["unfinished"] == float(JOBS)
    shown = [(figure.name, figure.measure(), figure.unit) for figure in figures_of("q", found, 60, {})]
    never = [(f"recovery/q/{key}", 60.0, NEVER) for key in ("again", "waiting")]
    assert [each for each in shown if each[0].endswith(("again", "waiting"))] == never
    none_waited = found | {"waited": 0}
    assert not [each.name for each in figures_of("q", none_waited, 60, {}) if each.name.endswith("waiting")]
    assert outcome(late, KILLED_AT, 70)["again"] == 61.0


def test_an_end_that_comes_twice_is_repeated_and_one_before_the_kill_is_not_interrupted() -> None:
    twice = notes(("start", 0, 0), ("end", 0, 0.5), ("start", 1, 0.9), ("start", 1, 5), ("end", 1, 8), ("end", 1, 9))
    found = outcome(twice, KILLED_AT, 60)
    assert (found["interrupted"], found["once"], found["repeated"]) == (1, 1, 1)
