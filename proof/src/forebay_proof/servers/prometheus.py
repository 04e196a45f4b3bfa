"""`Prometheus`: a real Prometheus with a configuration of the test's own, and `promtool` beside it.

Promise. The files that it is given lie in its directory, and it answers questions about what it scraped by them. It
ends as the other servers do.

Where it comes from, the first that is there: `prometheus` and `promtool` on PATH, or the copy that `make prometheus`
unpacks into the environment from the package of Debian or Ubuntu, without root. It is large, so only nightly tests use
it.

What can go wrong: `ServerUnavailable` if there is none.
"""

import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from forebay_proof.servers.account import Account, Programs, settle
from forebay_proof.servers.process import (
    LOOPBACK,
    PATIENCE,
    ProcessHandle,
    ServerUnavailable,
    ServerWatchdog,
    environment,
)
from forebay_proof.servers.server import LocalServer

UNPACKED: Final = Path(sys.prefix) / "prometheus"
"""Where `make prometheus` unpacks it."""

CONFIGURATION: Final = "prometheus.yml"
_WAY_OUT: Final = "put another prometheus on PATH"


def find_programs() -> Programs:
    """`prometheus` and `promtool`, without starting anything."""
    if found := shutil.which("prometheus"):
        return Programs(Path(found).resolve().parent)
    folder = UNPACKED / "usr" / "bin"
    if (folder / "prometheus").exists():
        return Programs(folder, (folder,))
    raise ServerUnavailable(
        f"no prometheus on PATH or in {UNPACKED}: install one, or run `make prometheus` on Debian or Ubuntu."
    )


def promtool(folder: Path, *words: str) -> str:
    """What promtool says, run in this folder; `CalledProcessError` when it is not content."""
    done = subprocess.run(
        [find_programs().folder / "promtool", *words],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE * 4,
        check=False,
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, words, done.stdout)
    return done.stdout


class Prometheus(LocalServer):
    program = "prometheus"

    def __init__(self, files: Mapping[str, str]) -> None:
        """`files` by name; `prometheus.yml` is what it reads."""
        super().__init__()
        self._files = dict(files)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query; an expression that is not understood is an error."""
        found: list[dict[str, Any]] = self._ask("query", {"query": expression})["result"]
        return found

    def groups(self) -> list[dict[str, Any]]:
        """The groups of rules and what became of them."""
        found: list[dict[str, Any]] = self._ask("rules", {})["groups"]
        return found

    def alerts(self) -> dict[str, str]:
        """The alerts that are pending or firing, by name."""
        return {alert["labels"]["alertname"]: alert["state"] for alert in self._ask("alerts", {})["alerts"]}

    def _ask(self, what: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        url = f"http://{LOOPBACK}:{self._port}/api/v1/{what}?{urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode()}") from None
        data: dict[str, Any] = answer["data"]
        return data

    def _prepare(self, watchdog: ServerWatchdog) -> Account:
        account = settle(watchdog, find_programs(), self.program, _WAY_OUT)
        for name, text in self._files.items():
            (watchdog.directory / name).write_text(text)
            account.own(watchdog.directory / name)
        return account

    def _command(self, account: Account, directory: Path) -> Sequence[str | Path]:
        return account.command(
            "prometheus",
            f"--config.file={directory / CONFIGURATION}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self._port}",
            "--log.level=warn",
        )

    def _is_ready(self, child: ProcessHandle) -> bool:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._port}/-/ready", timeout=2) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False
