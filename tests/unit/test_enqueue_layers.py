"""The layers of `around_enqueue` where no code of the app enqueues: its schedules, and the command line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from forebay.cli import main
from forebay.client import Forebay
from forebay.contrib.asgi import Dashboard
from forebay.core.job import Draft
from forebay.core.schedule import Schedule
from forebay.serve.app import create_app
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store
from forebay.testing import JobTester, ManualClock
from forebay.work.ticker import Ticker
from forebay.work.worker import Worker

APP = """
from msgspec.structs import replace
from forebay import Forebay

fb = Forebay("sqlite:///{directory}/jobs.db")


@fb.job
def greet(name: str) -> None: ...


@fb.around_enqueue
def stamp(draft):
    if draft.payload == {{"name": "mallory"}}:
        raise PermissionError("not her")
    yield replace(draft, meta={{**(draft.meta or {{}}), "release": "7"}})
"""


def scheduled(clock: ManualClock | None = None) -> Forebay:
    fb = Forebay("memory://", clock=clock)

    @fb.around_enqueue
    def stamp(draft: Draft) -> Iterator[Draft]:
        yield replace(draft, meta={**(draft.meta or {}), "release": "7"})

    @fb.cron("* * * * *")
    def tick() -> None: ...

    return fb


def releases(store: Store, kind: str = "tick") -> list[str | None]:
    return [(job.meta or {}).get("release") for job in store.browse(Query(kind=kind), 0, 100).jobs]


def due(fb: Forebay, clock: ManualClock) -> Store:
    """The store of the app, a minute later: a slot of its schedule is due, and one of another app."""
    (mine,) = fb.store.schedules()
    fb.store.put_schedule(Schedule("other", mine.rule, mine.next_at, Draft("of_another_app")))
    clock.advance(60_000_000)
    return fb.store


def worker_ticker(fb: Forebay) -> Ticker:
    return Worker(fb).ticker


def server_ticker(fb: Forebay) -> Ticker:
    app = create_app(fb.store, ServeSettings(), layers=fb.hooks.enqueue_layers_for(fb.registry))
    (ticker,) = (role for role in app.state.context._roles if isinstance(role, Ticker))
    return ticker


def dashboard_ticker(fb: Forebay) -> Ticker:
    app = Dashboard(fb, settings=ServeSettings())._created()
    (ticker,) = (role for role in app.state.context._roles if isinstance(role, Ticker))
    return ticker


@pytest.mark.parametrize("ticker_of", [worker_ticker, server_ticker, dashboard_ticker])
def test_the_job_of_a_schedule_passes_the_layers_of_its_app_and_no_other(
    ticker_of: Callable[[Forebay], Ticker],
) -> None:
    fb = scheduled(clock := ManualClock())
    ticker = ticker_of(fb)
    store = due(fb, clock)
    ticker.step()
    assert releases(store) == ["7"]
    assert releases(store, "of_another_app") == [None]


def test_a_tester_has_the_layers_of_its_app() -> None:
    with JobTester(scheduled()) as jobs:
        jobs.advance(minutes=1)
        assert [entry.draft.meta for entry in jobs._enqueued] == [{"release": "7"}]


def test_a_layer_that_raises_leaves_the_slot() -> None:
    fb = scheduled(clock := ManualClock())
    failing = [True]

    @fb.around_enqueue
    def guard(draft: Draft) -> Iterator[None]:
        if failing[0]:
            raise ConnectionError("the quota service is away")
        yield

    store = due(fb, clock)
    before = [mine for mine in store.schedules() if mine.name == "tick"]
    ticker = worker_ticker(fb)
    ticker.step()
    assert [mine for mine in store.schedules() if mine.name == "tick"] == before
    assert (releases(store), releases(store, "of_another_app")) == ([], [None]), "other schedules fire"
    failing[0] = False
    ticker.step()
    assert releases(store) == ["7"]


def test_the_command_line_with_the_app_passes_its_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "layered_app.py").write_text(APP.format(directory=tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["enqueue", "greet", "name=ada", "--app", "layered_app:fb", "--json"]) == 0
    receipt = msgspec.json.decode(capsys.readouterr().out)
    assert receipt == {"id": 1, "durable": True, "duplicate": False, "merged": False, "copies": []}
    assert main(["enqueue", "greet", "name=mallory", "--app", "layered_app:fb"]) == 1
    assert "PermissionError: not her; nothing was enqueued" in capsys.readouterr().err
    with closing(open_store(f"sqlite:///{tmp_path}/jobs.db")) as store:
        assert releases(store, "greet") == ["7"]
