"""Every queue has its vector wherever it is shown: on the command line, over HTTP and on the dashboard."""

from pathlib import Path

import pytest

from forebay import NAMED
from forebay.cli import main
from forebay.serve.actor import Role
from forebay.serve.settings import ServeSettings
from forebay.store.open import open_store
from tests.serve.site import Serving
from tests.serve.visitor import visitor


def test_the_twelve_print_their_vectors(tmp_path: Path, serve_on: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    specs = [named(f"my-{name}") for name, named in NAMED.items()]
    vectors = {spec.vector() for spec in specs}
    url = f"sqlite:///{tmp_path}/jobs.db"
    store = open_store(url)
    for spec in specs:
        store.put_spec(spec)

    assert main(["queues", "ls", "--store", url]) == 0
    assert vectors <= set(capsys.readouterr().out.splitlines())

    site = serve_on(store, ServeSettings(port=0, maintain=False))
    client = site.client(Role.VIEWER)
    listed = [each["vector"] for each in client.get("/queues").json()["queues"]]
    logs = [each["vector"] for each in client.get("/logs").json()["logs"]]
    assert {*listed, *logs} == vectors

    with visitor(site, Role.VIEWER) as viewer:
        for spec in specs:
            if spec.is_log:
                assert spec.vector() in viewer.get("/ui/logs").text
                continue
            page = viewer.get(f"/ui/queues/{spec.name}")
            assert spec.vector() in page.values("aria-label")
            assert all(answer in page.text for answer in spec.axes().values()), spec.name
            assert spec.commit_point in page.text
    store.close()
