"""A draft that exists can be stored, on every store alike: every field is checked when the draft is made."""

from typing import Any

import pytest
from msgspec.structs import asdict, replace

from forebay.core.errors import Invalid, PayloadInvalid
from forebay.core.instant import micros
from forebay.core.job import Draft, State
from forebay.core.limits import MAX_ATTEMPTS, MAX_DURATION, MAX_INSTANT, MAX_PRIORITY
from forebay.core.outcome import ABANDONED, Failure
from tests.unit.values import NOW, a_job

MAX_DELAY = micros(MAX_DURATION)
TEXT = "t" * 256
NAME = "n" * 128


def test_the_smallest_draft() -> None:
    draft = Draft("email")
    assert draft.body == b"null"
    assert draft.queue == "default"
    assert (draft.priority, draft.delay, draft.run_at, draft.key, draft.max_attempts) == (0, 0, None, None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", NAME),
        ("queue", NAME),
        ("priority", MAX_PRIORITY),
        ("priority", -MAX_PRIORITY),
        ("run_at", 0),
        ("run_at", MAX_INSTANT),
        ("delay", 1),
        ("delay", MAX_DELAY),
        ("deadline", 0),
        ("deadline", MAX_INSTANT),
        ("expires_at", 0),
        ("expires_at", MAX_INSTANT),
        ("key", TEXT),
        ("tenant", NAME),
        ("subject", TEXT),
        ("subject", "order 42 / ключ"),
        ("max_attempts", 1),
        ("max_attempts", MAX_ATTEMPTS),
        ("meta", {}),
        ("meta", {"trace": ""}),
        ("meta", {f"k{n}": "v" for n in range(16)}),
        ("meta", {f"k{n:02}": "v" * 253 for n in range(16)}),
    ],
)
def test_the_bounds_themselves_pass(field: str, value: Any) -> None:
    assert asdict(Draft(**{"kind": "email", field: value}))[field] == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, value) for field in ("kind", "queue", "tenant") for value in ("", NAME + "n", "a b", "a/b", 5, b"a")),
        ("kind", None),
        ("queue", None),
        *((field, value) for field in ("key", "subject") for value in ("", TEXT + "t", "a\0", "\ud800", 5, b"a")),
        ("priority", MAX_PRIORITY + 1),
        ("priority", -MAX_PRIORITY - 1),
        ("priority", 1.5),
        ("priority", 0.0),
        ("priority", True),
        ("priority", False),
        ("priority", "5"),
        ("priority", None),
        ("delay", -1),
        ("delay", MAX_DELAY + 1),
        ("delay", 0.0),
        ("delay", 0.5),
        ("delay", float("nan")),
        ("delay", None),
        *(
            (field, value)
            for field in ("run_at", "deadline", "expires_at")
            for value in (-1, MAX_INSTANT + 1, NOW * 1_000, 1.0, float("inf"), True, "tomorrow")
        ),
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", MAX_ATTEMPTS + 1),
        ("max_attempts", 2.0),
        ("max_attempts", True),
        ("meta", []),
        ("meta", "trace"),
        ("meta", {f"k{n}": "v" for n in range(17)}),
        ("meta", {f"k{n:02}": "v" * 253 for n in range(15)} | {"kxx": "v" * 254}),
        ("meta", {"a b": "v"}),
        ("meta", {"": "v"}),
        ("meta", {5: "v"}),
        ("meta", {"k": 5}),
        ("meta", {"k": None}),
        ("meta", {"k": "a\0"}),
        ("meta", {"k": "\ud800"}),
        ("meta", {"k": "v" * 257}),
    ],
)
def test_one_step_over_a_bound_is_refused(field: str, value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        Draft(**{"kind": "email", field: value})
    assert refused.value.field.startswith(field)


def test_run_at_and_delay_exclude_each_other() -> None:
    with pytest.raises(Invalid, match="give one of the two"):
        Draft("email", run_at=NOW, delay=1)


def test_the_payload_is_checked_and_encoded_when_the_draft_is_made() -> None:
    payload = {"to": ["ada"]}
    draft = Draft("email", payload)
    payload["to"].append("eve")
    assert draft.body == b'{"to":["ada"]}'
    with pytest.raises(PayloadInvalid, match=r"\$\.to"):
        Draft("email", {"to": {"ada"}})


def test_a_body_given_as_bytes_is_checked_and_wins() -> None:
    assert Draft("email", body=b" [1, 2] ").body == b"[1,2]"
    assert Draft("email", {"not": "read"}, body=b"1").body == b"1"
    with pytest.raises(PayloadInvalid, match="not JSON"):
        Draft("email", body=b"{")


def test_a_changed_copy_is_checked_too() -> None:
    with pytest.raises(Invalid, match="priority"):
        replace(Draft("email"), priority=2**40)


def test_meta_handed_in_is_not_shared_with_the_caller() -> None:
    meta = {"trace": "1"}
    draft = Draft("email", meta=meta)
    meta["trace"] = "\0"
    assert draft.meta == {"trace": "1"}


def test_a_draft_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Draft("email").kind = "sms"  # type: ignore[misc]


def test_terminal_states_are_those_without_a_way_on() -> None:
    assert [state for state in State if state.terminal] == [State.DONE, State.DEAD, State.CANCELLED]


def test_the_payload_of_a_job_is_decoded_anew_each_time() -> None:
    job = replace(a_job(), body=b'{"a":[]}', result_body=b"[1]")
    job.payload["a"].append(1)
    assert job.payload == {"a": []}
    assert job.result == [1]
    assert a_job().result is None


def test_a_job_runs_alone_after_two_deaths_in_a_row_or_with_its_last_life() -> None:
    lost, broke = Failure(ABANDONED), Failure("KeyError")
    histories = ((), (lost,), (lost, broke), (broke, lost), (lost, lost), (lost, broke, lost))
    assert [replace(a_job(), errors=errors, attempt=2, max_attempts=9).needs_quarantine for errors in histories] == [
        *(False, False, False, False, True, False)
    ]
    assert replace(a_job(), errors=(broke, lost), attempt=9, max_attempts=9).needs_quarantine
    assert not replace(a_job(), errors=(lost, broke), attempt=9, max_attempts=9).needs_quarantine


def test_a_job_whose_holder_died_is_suspect_until_it_fails_in_another_way() -> None:
    lost, broke = Failure(ABANDONED), Failure("Boom")
    assert [replace(a_job(), errors=errors).suspect for errors in ((), (lost,), (broke, lost), (lost, broke))] == [
        False,
        True,
        True,
        False,
    ]
