"""Acts on many jobs over real HTTP: a dry run changes nothing, a move moves what was chosen, at its pace."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from time import monotonic
from urllib.parse import parse_qsl, urlsplit

import pytest

from forebay.core.errors import Invalid
from forebay.core.job import Draft, State
from forebay.core.outcome import DeadLetter, Failure
from forebay.core.payload import parse_patch, patched
from forebay.serve.actor import Role
from forebay.serve.security.operator_log import read_actions
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from forebay.store.protocol import Query, Store, Want
from tests.serve.site import Serving, Site
from tests.serve.visitor import Visitor, visitor
from tests.waiting import eventually


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path}/jobs.db")
    yield opened
    opened.close()


@pytest.fixture
def shop(store: Store, serve_on: Serving) -> Site:
    """Ten dead mails, five dead resizes, five waiting ones."""
    mails = [Draft("mail", {"to": {"name": "ada", "host": "old"}, "n": n}, "mail", tenant="acme") for n in range(10)]
    store.enqueue([*mails, *[Draft("resize", None, "media", tenant="birch")] * 5])
    for queue, error in (("mail", "SMTPError"), ("media", "ValueError")):
        leases = store.claim([Want(queue, 10)], "w", timedelta(minutes=1))
        store.settle([(lease, DeadLetter(Failure(error, f"no {lease.job.id}"))) for lease in leases])
    store.enqueue([Draft("resize", None, "media", delay=3_600_000_000, tenant="birch")] * 5)
    return serve_on(store, ServeSettings(port=0, maintain=False))


def states(store: Store) -> dict[State, int]:
    jobs = store.browse(Query(), 0, 1_000).jobs
    return {
        state: sum(job.state is state for job in jobs) for state in State if any(job.state is state for job in jobs)
    }


def dry_run(operator: Visitor, **fields: object) -> str:
    place = operator.done("/ui/bulk", **fields)
    eventually(lambda: "under way" not in operator.get(place).text)
    return place


def test_a_dry_run_changes_nothing_and_says_how_many(shop: Site, store: Store) -> None:
    before = states(store)
    with visitor(shop, Role.OPERATOR) as operator:
        place = dry_run(operator, act="redrive", queue="mail")
        text = operator.get(place).text
        assert "10 jobs would be redriven" in text
        assert "SMTPError" in text
        assert "Redrive 10 at 50/s" in text
    assert states(store) == before
    assert read_actions(store)[0] == []


def test_a_redrive_moves_what_was_chosen(shop: Site, store: Store) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        place = dry_run(operator, act="redrive", queue="mail", limit=7, rate=1_000)
        store.redrive([1])
        operator.done(f"{place}/start")
        eventually(lambda: "6 of 7 redriven" in operator.get(place).text)
        assert "1 had changed meanwhile" in operator.get(place).text
        assert operator.post(f"{place}/start").status_code == 409
    assert states(store)[State.DEAD] == 8
    (act,) = read_actions(store)[0]
    assert (act.action, act.target, act.details["filter"]) == (
        "redrive many",
        "7 jobs",
        {"queue": "mail", "state": "dead"},
    )


def test_dead_letters_are_purged_after_a_dry_run(shop: Site, store: Store) -> None:
    before = states(store)
    with visitor(shop, Role.OPERATOR) as operator:
        links = operator.get("/ui/dead").values("href")
        assert any("act=purge" in href and "cause" in href for href in links)
        place = dry_run(operator, act="purge", queue="mail", rate=1_000)
        page = operator.get(place).text
        assert "10 jobs would be purged" in page
        assert "cannot be undone" in page
        assert states(store) == before
        store.redrive([1])
        operator.done(f"{place}/start")
        eventually(lambda: "9 of 10 purged" in operator.get(place).text)
    assert states(store)[State.DEAD] == 5
    assert store.get([1])[0] is not None
    (act,) = read_actions(store)[0]
    assert (act.action, act.target) == ("purge many", "10 jobs")


def test_a_cause_is_redriven_alone_and_shown_on_its_page(shop: Site, store: Store) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        links = [
            href for href in operator.get("/ui/dead").values("href") if "/ui/bulk/new?state" in href and "cause" in href
        ]
        assert len(links) == 2
        fields = dict(parse_qsl(urlsplit(links[0]).query))
        assert "queue" not in fields, "a cause names where its jobs died, and they may be kept elsewhere"
        operator.get(links[0])
        place = dry_run(operator, act="redrive", rate=1_000, **fields)
        operator.done(f"{place}/start")
        eventually(lambda: "10 of 10 redriven" in operator.get(place).text)
        assert "ValueError" in operator.get("/ui/dead").text
        assert "SMTPError" not in operator.get("/ui/dead").text
    assert states(store)[State.DEAD] == 5


def test_a_patch_is_shown_before_and_applied_after(shop: Site, store: Store) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        patch = '{"to": {"host": "new"}, "n": null}'
        place = dry_run(operator, act="redrive", queue="mail", rate=1_000, patch=patch)
        page = operator.get(place).text
        assert "With the patch" in page
        assert '"host": "new"' in page
        operator.done(f"{place}/start")
        eventually(lambda: "10 of 10 redriven" in operator.get(place).text)
    mended = store.browse(Query(queue="mail"), 0, 100).jobs
    assert [job.payload for job in mended] == [{"to": {"name": "ada", "host": "new"}}] * 10
    assert {job.tenant for job in mended} == {"acme"}
    assert all(job.meta and job.meta["redriven_from"] for job in mended)


def test_many_jobs_are_cancelled(shop: Site, store: Store) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        place = dry_run(operator, act="cancel", queue="media", state="waiting", rate=1_000)
        assert "5 jobs would be cancelled" in operator.get(place).text
        operator.done(f"{place}/start")
        eventually(lambda: "5 of 5 cancelled" in operator.get(place).text)
    assert State.WAITING not in states(store)
    assert states(store)[State.DEAD] == 15


def test_a_move_keeps_its_pace_and_stops_on_request(shop: Site, store: Store) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        place = dry_run(operator, act="redrive", rate=2)
        began = monotonic()
        operator.done(f"{place}/start")
        eventually(lambda: "2 of 15 redriven" in operator.get(place).text)
        assert monotonic() - began >= 0.5, "two a second: the second begins half a second after the first"
        operator.done(f"{place}/stop")
        eventually(lambda: "stopped" in operator.get(place).text)
        (task,) = [move.task for move in shop.app.state.view_cache.bulk_actions._actions.values()]
        eventually(task.done)
        assert 0 < states(store)[State.DEAD] <= 13
        place = dry_run(operator, act="redrive")
        operator.done(f"{place}/stop")
        assert operator.post(f"{place}/start").status_code == 409
    assert [act.action for act in read_actions(store)[0]][-2:] == ["stop redrive many", "redrive many"]


def test_a_move_stays_within_what_its_actor_sees(shop: Site, store: Store) -> None:
    with (
        visitor(shop, Role.OPERATOR, tenant="birch") as birch,
        visitor(shop, Role.OPERATOR, queues=("mail",)) as mail,
    ):
        place = dry_run(birch, act="redrive")
        assert "5 jobs would be" in birch.get(place).text
        assert "10 jobs would be" in mail.get(dry_run(mail, act="redrive")).text
        mail.get(place, 404)
        assert mail.post(f"{place}/start").status_code == 404
        assert mail.post(f"{place}/stop").status_code == 404
        assert "Nothing" in mail.get(dry_run(mail, act="redrive", queue="media")).text


NONSENSE: tuple[dict[str, str], ...] = (
    {"limit": "0"},
    {"limit": "1e9"},
    {"rate": "0"},
    {"rate": "nan"},
    {"rate": "-1"},
    {"rate": "x"},
    {"patch": "{"},
    {"patch": "[1]"},
    {"patch": "{}"},
    {"patch": '{"a": NaN}'},
    {"queue": "<b>"},
    {"state": "odd"},
)


def test_what_makes_no_sense_is_refused(shop: Site) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        for fields in NONSENSE:
            assert operator.post("/ui/bulk", act="redrive", **fields).status_code == 422, fields


def test_moves_are_bounded(shop: Site, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.serve.dashboard.bulk_actions.MAX_ACTIONS", 2)
    with visitor(shop, Role.OPERATOR) as operator:
        places = [dry_run(operator, act="redrive") for _ in range(4)]
        operator.get(places[0], 404)
        operator.get(places[3])
        monkeypatch.setattr("forebay.serve.dashboard.bulk_actions.MAX_RUNNING", 0)
        assert operator.post("/ui/bulk", act="redrive").status_code == 503


def test_a_move_that_fails_says_so(shop: Site, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with visitor(shop, Role.OPERATOR) as operator:
        place = dry_run(operator, act="redrive")

        def refuse(ids: list[int]) -> list[int]:
            raise Invalid("redrive", "not today", "try tomorrow")

        monkeypatch.setattr(shop.store, "redrive", refuse)
        operator.done(f"{place}/start")
        eventually(lambda: "not today" in operator.get(place).text)
        assert "failed" in operator.get(place).text


def test_merge_patches_are_those_of_the_rfc() -> None:
    for before, patch, after in (
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ("text", {"a": 1}, {"a": 1}),
    ):
        kept = repr(before)
        assert patched(before, patch) == after
        assert repr(before) == kept
    assert parse_patch(" ") is None
