"""Payload versions: older payloads are upgraded step by step, newer ones wait for a worker with newer code."""

from collections.abc import Iterator
from typing import Any

import pytest

from forebay import Draft, Forebay, Invalid, State
from forebay.cli import main
from forebay.testing import JobTester
from forebay.vault import Vault
from forebay.work.options import Options
from forebay.work.versions import NEWER, VERSION
from forebay.work.worker import Worker
from tests.waiting import eventually


class Mail:
    """An app whose payload has changed twice, and what it sent."""

    def __init__(self, vault: Vault | None = None, version: int = 3) -> None:
        self.fb = Forebay("memory://", vault=vault)
        self.sent: list[tuple[list[str], str]] = []

        @self.fb.job(version=version, max_attempts=2)
        def send(recipients: list[str], subject: str) -> None:
            self.sent.append((recipients, subject))

        self.send = send
        if version == 3:

            @send.upgrade(from_version=1)
            def many(payload: dict[str, Any]) -> dict[str, Any]:
                return {"recipients": [payload["to"]]}

            @send.upgrade(from_version=2)
            def subject(payload: dict[str, Any]) -> dict[str, Any]:
                return {**payload, "subject": "(none)"}


@pytest.fixture
def mail() -> Iterator[Mail]:
    mail = Mail()
    yield mail
    mail.fb.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_older_payloads_are_upgraded_step_by_step(sealed: bool) -> None:
    vault = Vault({"k": b"0" * 32}) if sealed else None
    mail = Mail(vault)
    first, second = Draft("send", {"to": "ada"}), Draft("send", {"recipients": ["bo"]}, meta={VERSION: "2"})
    with JobTester(mail.fb) as jobs:
        jobs.store.enqueue([mail.fb.codec.encoded(draft) for draft in (first, second)])
        mail.send.enqueue(["cy"], "Hi")
        jobs.run_all()
        assert jobs.errors == []
    assert mail.sent == [(["ada"], "(none)"), (["bo"], "(none)"), (["cy"], "Hi")]


def test_the_version_travels_with_what_the_app_enqueues(mail: Mail) -> None:
    mail.send.using(meta={"trace": "t"}).enqueue(["ada"], "Hi")
    mail.fb.enqueue("send", {"recipients": [], "subject": ""})
    mail.fb.enqueue("other")
    mail.fb.enqueue("send", {"to": "ada"}, meta={VERSION: "1"})
    versions = [(job.meta or {}).get(VERSION) for job in mail.fb.jobs()]
    assert versions == ["3", "3", None, "1"]
    first = next(mail.fb.jobs())
    assert (first.meta or {})["trace"] == "t"


def test_a_newer_payload_goes_back_uncharged_with_the_reason(mail: Mail, caplog: pytest.LogCaptureFixture) -> None:
    receipt = mail.fb.enqueue("send", {"new": 1}, meta={VERSION: "4"})
    worker = Worker(mail.fb, Options())
    worker.start()

    def released() -> bool:
        job = mail.fb.get(receipt.id)
        return job is not None and job.state is State.WAITING

    eventually(released)
    worker.drain(5)
    job = mail.fb.get(receipt.id)
    assert job is not None
    assert (job.attempt, len(job.errors)) == (0, 1)
    assert job.errors[0].kind == NEWER
    assert job.errors[0].message == "its payload is version 4 of send, and this worker has version 3"
    assert "uncharged: its payload is version 4 of send, and this worker has version 3" in caplog.text
    assert mail.sent == []
    with JobTester(mail.fb) as jobs:
        mail.fb.enqueue("send", {"new": 1}, meta={VERSION: "4"})
        jobs.run_all()
        assert jobs.errors == []
        assert mail.sent == []


@pytest.mark.parametrize(("version", "meta"), [(2, None), (3, {VERSION: "0"}), (3, {VERSION: "two"})])
def test_a_missing_step_or_a_malformed_version_is_a_dead_letter(version: int, meta: dict[str, str] | None) -> None:
    mail = Mail(version=version)
    with JobTester(mail.fb) as jobs:
        (receipt,) = jobs.store.enqueue([Draft("send", {"to": "ada"}, meta=meta)])
        jobs.run_all()
        job = mail.fb.get(receipt.id)
    assert job is not None
    assert (job.state, job.attempt) == (State.DEAD, 1)
    assert "there is no upgrade from" in job.errors[-1].message


def test_an_upgrade_that_raises_is_a_failed_attempt(mail: Mail) -> None:
    with JobTester(mail.fb) as jobs:
        (receipt,) = jobs.store.enqueue([Draft("send", {"no": "recipient"}, max_attempts=2)])
        jobs.advance(hours=1)
        job = mail.fb.get(receipt.id)
    assert job is not None
    assert (job.state, job.attempt, job.errors[-1].kind) == (State.DEAD, 2, "KeyError")


def test_what_is_wrong_with_a_version_is_refused_at_its_declaration(mail: Mail) -> None:
    for version in (0, 3, "1"):
        with pytest.raises(Invalid, match="from_version"):
            mail.send.upgrade(from_version=version)(dict)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="already"):
        mail.send.upgrade(from_version=1)(dict)
    with pytest.raises(Invalid, match="version"):
        mail.fb.job(kind="other", version=0)(lambda: None)


def test_the_command_line_names_the_version_that_it_checked(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from forebay import Forebay\nfb = Forebay()\n@fb.job(version=2)\ndef send(to: str) -> None: ...\n"
    (tmp_path / "versioned_app.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    url = f"sqlite:///{tmp_path}/jobs.db"
    for more in (["--app", "versioned_app:fb"], []):
        assert main(["enqueue", "send", "to=ada", "--store", url, *more]) == 0
    with Forebay(url) as fb:
        assert [(job.meta or {}).get(VERSION) for job in fb.jobs()] == ["2", None]
