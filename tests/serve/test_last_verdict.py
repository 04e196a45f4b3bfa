"""The verdict of the last audit on the overview: from a directory, and from a lake that may not answer."""

from pathlib import Path
from threading import Event
from time import monotonic

import msgspec

from forebay.serve.actor import Role
from forebay.serve.app import create_app
from forebay.serve.settings import ServeSettings
from forebay.store.protocol import Store
from tests.serve.site import Serving
from tests.serve.visitor import visitor
from tests.waiting import eventually


def test_the_last_verdict_is_on_the_first_page(store: Store, serve_on: Serving, tmp_path: Path) -> None:
    verdict = {"answer": "PASS", "at": store.now() - 60_000_000, "reasons": [], "facts": {}, "results": []}
    (tmp_path / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    site = serve_on(store, ServeSettings(port=0, maintain=False, lake=str(tmp_path)))
    with visitor(site, Role.VIEWER) as viewer:
        assert "PASS 1m" in viewer.get("/ui/").text
        (tmp_path / "verdict.json").write_bytes(b"{broken")
        assert "no verdict" in viewer.get("/ui/").text


def test_an_object_store_that_does_not_answer_delays_no_page(store: Store, serve_on: Serving) -> None:
    answered = Event()

    def read() -> bytes:
        assert answered.wait(60)
        return msgspec.json.encode({"answer": "FAIL", "at": store.now(), "reasons": ["lost: 1"]})

    settings = ServeSettings(port=0, maintain=False)
    site = serve_on(store, settings, create_app(store, settings, read_verdict=read))
    with visitor(site, Role.VIEWER) as viewer:
        began = monotonic()
        for _ in range(3):
            assert "no verdict" in viewer.get("/ui/").text
        assert monotonic() - began < 10
        answered.set()
        eventually(lambda: "FAIL" in viewer.get("/ui/").text)
