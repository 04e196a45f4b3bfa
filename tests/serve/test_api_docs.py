"""docs/guides/http.md and examples/worker.sh are run, line by line, against a real server, and the output compared."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.core.instant import days, seconds
from forebay.core.job import Draft, State
from forebay.core.policy import Fixed, KeepFor, Routing
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.store.open import open_store
from forebay.store.protocol import Store
from tests.serve.site import Serving

ROOT = Path(__file__).parents[2]
MARK = "--- the end of block"
BLOCK = re.compile(r"```(sh|json)\n(.*?)```", re.DOTALL)


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    yield store
    store.close()


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that `make servers` unpacked, where the machine has none."""
    monkeypatch.setenv("PATH", f"{ROOT / '.venv' / 'tools'}{os.pathsep}{os.environ['PATH']}")


def needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def shows(shown: Any, came: Any, path: str = "$") -> None:
    """What the page shows is there; "…" matches anything, and more may come."""
    if shown == "…":
        return
    if isinstance(shown, dict):
        assert isinstance(came, dict), f"{path}: {came}"
        for name, value in shown.items():
            assert name in came, f"{path}.{name} is missing in {came}"
            shows(value, came[name], f"{path}.{name}")
    elif isinstance(shown, list):
        assert isinstance(came, list), f"{path}: {came}"
        assert len(shown) == len(came), f"{path}: {came}"
        for number, (one, other) in enumerate(zip(shown, came, strict=True)):
            shows(one, other, f"{path}[{number}]")
    else:
        assert shown == came, f"{path}: {came!r}, the page shows {shown!r}"


def test_the_page_is_true(on_disk: Store, serve_on: Serving, tmp_path: Path) -> None:
    needs("curl")
    site = serve_on(on_disk)
    blocks = BLOCK.findall((ROOT / "docs" / "guides" / "http.md").read_text())
    scripts = [text for language, text in blocks if language == "sh"]
    page = "".join(f"{text}\necho; echo '{MARK} {number}'\n" for number, text in enumerate(scripts))
    environment = {**os.environ, "FOREBAY": site.url, "FOREBAY_KEY": site.key(Role.ADMIN), "no_proxy": "127.0.0.1"}
    response = subprocess.run(
        ["sh", "-eu", "-c", page],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert response.returncode == 0, response.stdout[-500:] + response.stderr
    answers = re.split(rf"{MARK} \d+\n", response.stdout)[:-1]
    assert len(answers) == len(scripts)
    at = -1
    for language, text in blocks:
        if language == "sh":
            at += 1
        else:
            came = answers[at].strip().rpartition("}{")
            last = answers[at].strip() if not came[1] else "{" + came[2]
            shows(json.loads(text), json.loads(last))


def test_every_route_stands_on_the_page(serve_on: Serving, on_disk: Store) -> None:
    page = (ROOT / "docs" / "guides" / "http.md").read_text()
    for path in serve_on(on_disk).app.openapi()["paths"]:
        bare = re.sub(r"\{[a-z_]+\}", "", path).rstrip("/")
        assert bare.replace("//", "/").split("/")[1] in page, path


def test_the_worker_in_the_shell_does_the_work(on_disk: Store, serve_on: Serving) -> None:
    needs("curl", "jq")
    on_disk.put_spec(QueueSpec(name="sums", retention=KeepFor(days(1)), routing=Routing(2, Fixed(seconds(0)))))
    site = serve_on(on_disk)
    good, bad = (receipt.id for receipt in on_disk.enqueue([Draft("sum", [1, 2], "sums"), Draft("sum", "no", "sums")]))
    environment = {**os.environ, "FOREBAY_API": site.url, "FOREBAY_KEY": site.key(Role.WORKER), "no_proxy": "127.0.0.1"}
    worker = subprocess.Popen(
        [str(ROOT / "examples" / "worker.sh"), "sums", "jq", "-e", "add"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert worker.stdout is not None
        response = [json.loads(worker.stdout.readline())["settled"][0] for _ in range(3)]
    finally:
        os.killpg(worker.pid, 9)
        worker.communicate()
    assert [each["answer"] for each in response] == ["applied"] * 3
    assert sorted(each["became"] for each in response) == ["dead", "done", "retry"]
    done, dead = on_disk.get([good, bad])
    assert done is not None
    assert dead is not None
    assert (done.state, done.result) == (State.DONE, "3")
    assert (dead.state, dead.errors[-1].kind) == (State.DEAD, "exit 5")
    assert len((ROOT / "examples" / "worker.sh").read_text().splitlines()) <= 40
