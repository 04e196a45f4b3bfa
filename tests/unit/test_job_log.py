"""What a worker writes to the log about jobs: one record for each failed attempt, bounded, and without secrets."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from forebay.client import Forebay
from forebay.core.instant import seconds
from forebay.core.job import Draft, Job
from forebay.core.lease import Lease
from forebay.core.outcome import Ack, DeadLetter, Failure, Release, Retry
from forebay.core.policy import Routing
from forebay.store.protocol import Want
from forebay.work.console import clean
from forebay.work.handler import Drop
from forebay.work.job_log import BURST, KINDS_AT_ONCE, LOGGER, MAX_KEYS, SUMMARY_EVERY, JobLog, Throttle
from forebay.work.log_setup import FORMAT, LEVEL, ConsoleFormatter, JsonFormatter, configure_logging
from forebay.work.reaper import Reaper
from tests.unit.test_pool import Rig, at_work

BOOM = Failure("ValueError", "boom", "Traceback (most recent call last):\nValueError: boom\n")


class KeptRecords(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def events(self) -> list[tuple[str, str]]:
        return [(record.levelname, vars(record)["event"]) for record in self.records]


@contextmanager
def at_level(level: int, handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger(LOGGER)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.fixture
def kept() -> Iterator[KeptRecords]:
    """The records of a worker at its default level."""
    handler = KeptRecords()
    with at_level(logging.WARNING, handler):
        yield handler


@pytest.fixture
def all_kept() -> Iterator[KeptRecords]:
    """The records of a worker at DEBUG."""
    handler = KeptRecords()
    with at_level(logging.DEBUG, handler):
        yield handler


@pytest.fixture
def fb() -> Forebay:
    return Forebay("memory://")


class ManualTime:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def a_job(fb: Forebay, kind: str = "mail", number: int = 1) -> Job:
    fb.store.enqueue([Draft(kind, max_attempts=3)])
    (lease,) = fb.store.claim([Want("default", number)], "ada", seconds(60))
    return lease.job


def exhaust(rig: Rig, lease: Lease, times: int) -> None:
    for _ in range(times):
        rig.pool.submit([lease])
        if isinstance(rig.verdict(), Retry):
            lease = rig.again(lease)


def test_each_failed_attempt_is_one_record_and_the_last_one_names_the_dead_letter(
    fb: Forebay, kept: KeptRecords
) -> None:
    @fb.job
    def mail(to: str) -> None:
        raise ValueError(f"no way to {to}")

    with at_work(fb) as rig:
        (lease,) = rig.leased(Draft("mail", {"to": "ada"}, max_attempts=3, tenant="acme"))
        exhaust(rig, lease, 3)
    assert kept.events() == [("WARNING", "failed"), ("WARNING", "failed"), ("ERROR", "dead")]
    first, _, last = kept.records
    output = first.getMessage()
    assert output.startswith("job 1 (mail) failed on attempt 1 of 3 after "), output
    assert output.endswith(": ValueError: no way to ada; retry in 7.0 s"), output
    fields = {name: vars(first)[name] for name in ("job_id", "kind", "queue", "attempt", "max_attempts", "delivery")}
    assert fields == {
        "job_id": 1,
        "kind": "mail",
        "queue": "default",
        "attempt": 1,
        "max_attempts": 3,
        "delivery": 1,
    }
    more = {name: vars(first)[name] for name in ("error", "error_message", "retry_in_seconds", "tenant")}
    assert more == {
        "error": "ValueError",
        "error_message": "no way to ada",
        "retry_in_seconds": 7.0,
        "tenant": "acme",
    }
    assert 0 <= vars(first)["duration_seconds"] < 30
    assert first.exc_text is None, "the traceback comes with the last attempt"
    assert "is a dead letter now: it failed on attempt 3 of 3" in last.getMessage()
    assert last.exc_text is not None
    assert last.exc_text.startswith("Traceback (most recent call last):\n  File ")
    assert "in mail\n" in last.exc_text.split("  File ")[1], "the worker's own calls are left out"


def test_what_is_dropped_at_once_is_a_dead_letter_in_the_log(fb: Forebay, kept: KeptRecords) -> None:
    @fb.job
    async def mail() -> None:
        raise Drop("bad address")

    with at_work(fb) as rig:
        rig.run("mail", {})
    assert kept.events() == [("ERROR", "dead")]


def test_at_debug_every_step_is_logged_and_every_failure_has_its_traceback(fb: Forebay, all_kept: KeptRecords) -> None:
    @fb.job
    async def quick() -> None:
        pass

    @fb.job
    def slow() -> None:
        pass

    @fb.job
    async def bad() -> None:
        raise ValueError("boom")

    with at_work(fb) as rig:
        for kind in ("quick", "slow", "bad"):
            rig.run(kind, {})
            assert rig.pool.wait_until_idle(30)
    assert [event for _, event in all_kept.events()] == ["started", "done", "started", "done", "started", "failed"]
    assert all_kept.records[1].getMessage().startswith("job 1 (quick) done in ")
    assert all_kept.records[1].levelno == logging.DEBUG
    assert all_kept.records[-1].exc_text is not None


def test_a_success_writes_nothing_at_the_default_level(fb: Forebay, kept: KeptRecords) -> None:
    @fb.job
    async def quick() -> None:
        pass

    with at_work(fb) as rig:
        assert rig.run("quick", {}) == Ack()
    assert kept.records == []


def test_secrets_of_the_payload_and_of_the_message_are_not_logged(fb: Forebay, all_kept: KeptRecords) -> None:
    @fb.job
    def charge(password: str, note: str) -> None:
        raise ValueError(f"refused {password} for {note}, api_key=qwertzuiopasdf")

    with at_work(fb) as rig:
        (lease,) = rig.leased(Draft("charge", {"password": "hunter2222", "note": "ada"}, max_attempts=1))
        exhaust(rig, lease, 1)
    reported = [str(vars(record)) for record in all_kept.records]
    assert "refused *** for ada" in reported[-1]
    assert [line for line in reported if "hunter2222" in line or "qwertzuiopasdf" in line] == []


def test_control_characters_of_a_message_stay_in_their_line(fb: Forebay, kept: KeptRecords) -> None:
    JobLog().ended(a_job(fb), Retry(0, Failure("ValueError", "one\ntwo\x1b[2J")))
    assert "one\\ntwo\\x1b[2J" in kept.records[0].getMessage()


def test_a_handler_of_the_log_that_raises_costs_no_verdict(fb: Forebay, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no space left")

    monkeypatch.setattr(logging, "raiseExceptions", False)

    @fb.job
    async def bad() -> None:
        raise ValueError("boom")

    with at_level(logging.DEBUG, Broken()), at_work(fb) as rig:
        assert isinstance(rig.run("bad", {}), Retry)


def test_a_storm_is_cut_down_and_what_was_left_out_is_counted(fb: Forebay, kept: KeptRecords) -> None:
    hands = ManualTime()
    log, job = JobLog(hands), a_job(fb)
    for _ in range(1_000):
        log.ended(job, Retry(0, BOOM))
    assert len(kept.records) == BURST
    hands.now += 5
    for _ in range(100):
        log.ended(job, Retry(0, BOOM))
    assert len(kept.records) == BURST + 5, "one a second"
    hands.now += SUMMARY_EVERY
    log.flush()
    log.flush()
    (summary,) = kept.records[BURST + 5 :]
    assert summary.getMessage() == "1,085 job records left out by the rate limit: mail ValueError 1,085"
    assert (vars(summary)["event"], vars(summary)["suppressed"]) == ("suppressed", 1_085)


def test_the_text_of_a_record_that_is_left_out_is_not_built(fb: Forebay, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []

    def counted(text: str) -> str:
        built.append(text)
        return clean(text)

    monkeypatch.setattr("forebay.work.job_log.clean", counted)
    log, job = JobLog(ManualTime()), a_job(fb)
    for verdict in (Retry(0, BOOM), DeadLetter(BOOM), Release(0, BOOM)):
        for _ in range(100):
            log.ended(job, verdict)
    assert len(built) == BURST


def test_a_text_is_cleaned_alike_with_and_without_control_characters() -> None:
    texts = [*map(chr, range(0x3000)), "\ue000", "\U0001f600", "\ud800", "\u200b"]
    escaped = "\x1b"
    assert [clean(text) for text in texts] == [clean(escaped + text)[len(ascii(escaped)) - 2 :] for text in texts]


def test_many_kinds_of_failures_have_one_limit_together(fb: Forebay, kept: KeptRecords) -> None:
    log, job = JobLog(ManualTime()), a_job(fb)
    for number in range(1_000):
        log.ended(job, Retry(0, Failure(f"Error{number}", "boom")))
    assert len(kept.records) == BURST * KINDS_AT_ONCE


def test_at_debug_a_storm_is_bounded_too(fb: Forebay, all_kept: KeptRecords) -> None:
    log, job = JobLog(ManualTime()), a_job(fb)
    for _ in range(3_000):
        log.started(job)
    assert len(all_kept.records) == 1_000
    log.flush(now=True)
    assert vars(all_kept.records[-1])["suppressed"] == 2_000


def test_what_has_no_handler_is_logged_once_a_minute_with_a_count(fb: Forebay, kept: KeptRecords) -> None:
    hands = ManualTime()
    log, job = JobLog(hands), a_job(fb)
    for _ in range(100):
        log.unhandled(job, Release(2_000_000))
    assert kept.events() == [("WARNING", "unhandled")]
    assert "queue default" in kept.records[0].getMessage()
    assert "no handler for kind mail" in kept.records[0].getMessage()
    hands.now += 61
    log.unhandled(job, Release(2_000_000))
    assert kept.records[1].getMessage().endswith("again in 2.0 s; 99 more jobs since the last such record")
    assert vars(kept.records[1])["suppressed"] == 99


def test_a_throttle_remembers_a_bounded_number_of_keys() -> None:
    hands = ManualTime()
    throttle = Throttle(1, 1.0, total=MAX_KEYS, clock=hands)
    assert all(throttle.admit(number) for number in range(MAX_KEYS))
    assert not throttle.admit("another"), "all places are taken"
    assert throttle.take_refused() == {"others": 1}
    hands.now += 2
    assert throttle.admit("another")
    assert throttle.take_refused() == {}


def test_a_job_that_its_holder_left_for_good_is_found_by_the_reaper(kept: KeptRecords) -> None:
    fb = Forebay("memory://")

    class ExpiredLeases:
        """A store in which every lease has run out."""

        def overdue(self, limit: int) -> list[Lease]:
            return leases

        def __getattr__(self, name: str) -> object:
            return getattr(fb.store, name)

    fb.store.enqueue([Draft("mail", max_attempts=1)])
    leases = fb.store.claim([Want("default", 1)], "ada", seconds(60))
    Reaper(ExpiredLeases(), lambda _: Routing()).step()  # type: ignore[arg-type]
    assert kept.events() == [("ERROR", "dead")]
    assert "forebay.Abandoned: its lease ran out" in kept.records[0].getMessage()


def test_json_is_one_object_a_line_with_the_fields(fb: Forebay, kept: KeptRecords) -> None:
    log, job = JobLog(), a_job(fb)
    log.ended(job, DeadLetter(BOOM), 0.0125)
    line = JsonFormatter().format(kept.records[0])
    assert "\n" not in line
    output = json.loads(line)
    assert output.pop("time").endswith("+00:00")
    assert output == {
        "level": "ERROR",
        "logger": "forebay.jobs",
        "message": "job 1 (mail) is a dead letter now: it failed on attempt 1 of 3 after 12.5 ms: ValueError: boom",
        "event": "dead",
        "job_id": 1,
        "kind": "mail",
        "queue": "default",
        "attempt": 1,
        "max_attempts": 3,
        "delivery": 1,
        "duration_seconds": 0.0125,
        "error": "ValueError",
        "error_message": "boom",
        "traceback": "Traceback (most recent call last):\nValueError: boom",
    }


def test_json_hides_secrets_among_the_fields_of_an_application_and_takes_any_value() -> None:
    record = logging.makeLogRecord(
        {"name": "app", "msg": "hi", "password": "hunter2222", "odd": {1: object}, "ratio": float("nan")}
    )
    output = json.loads(JsonFormatter().format(record))
    assert output["password"] == "***"
    assert output["odd"] == {"1": "<class 'object'>"}


@pytest.mark.parametrize("coloured", [True, False])
def test_the_console_has_a_line_for_each_step(fb: Forebay, all_kept: KeptRecords, coloured: bool) -> None:
    log, job = JobLog(), a_job(fb)
    log.started(job)
    log.ended(job, Ack(), 0.012)
    log.ended(job, Retry(3_000_000, msgspec.structs.replace(BOOM, trace="")), 0.012)
    log.ended(job, DeadLetter(BOOM), 0.012)
    log.ended(job, Release(2_000_000), 0.012)
    shown = [ConsoleFormatter(coloured=coloured).format(record) for record in all_kept.records]
    plain = [line[10:] for line in shown]
    paint = (lambda text, code: f"\033[{code}m{text}\033[0m") if coloured else (lambda text, code: text)
    failed = "failed on attempt 1 of 3 after 12 ms: ValueError: boom"
    assert plain == [
        f"mail 1  {paint('started, attempt 1 of 3', 2)}",
        f"mail 1  {paint('done in 12 ms', 32)}",
        f"mail 1  {paint(f'{failed}; retry in 3.0 s', 33)}",
        f"mail 1  {paint(f'is a dead letter now: it {failed}', 31)}\n{BOOM.trace.rstrip()}",
        f"mail 1  {paint('was released, again in 2.0 s', 36)}",
    ]


@contextmanager
def bare_loggers() -> Iterator[None]:
    """Loggers as in a new process, whatever other tests have set."""
    loggers = [logging.getLogger(name) for name in ("", "forebay", "forebay.work", LOGGER)]
    before = [(list(logger.handlers), logger.level, logger.propagate, logger.disabled) for logger in loggers]
    for logger in loggers:
        logger.handlers[:] = []
        logger.setLevel(logging.NOTSET if logger.parent else logging.WARNING)
        logger.propagate, logger.disabled = True, False
    try:
        yield
    finally:
        for logger, (handlers, level, propagate, disabled) in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate, logger.disabled = propagate, disabled


def test_an_application_keeps_its_handlers_and_forebay_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    output = io.StringIO()
    monkeypatch.setenv(LEVEL, "debug")
    monkeypatch.delenv(FORMAT, raising=False)
    with bare_loggers():
        logging.getLogger().addHandler(logging.StreamHandler(output))
        configure_logging()
        assert len(logging.getLogger().handlers) == 1
        logging.getLogger("forebay.work").debug("hello")
    assert output.getvalue() == "hello\n"


def test_json_that_was_asked_for_is_used_beside_an_applications_own_handlers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = io.StringIO()
    monkeypatch.setenv(FORMAT, "json")
    with bare_loggers():
        logging.getLogger().addHandler(logging.StreamHandler(output))
        configure_logging()
        logging.getLogger("forebay.work").warning("hello")
        logging.getLogger("app").warning("mine")
    assert output.getvalue() == "mine\n"
    assert json.loads(capsys.readouterr().err)["message"] == "hello"
