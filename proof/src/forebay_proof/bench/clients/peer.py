"""Peers: how they are started, with which settings, and which of them are here.

They live in `.venv-bench`, which PEERS=1 fills with pinned versions; what is not there is left out. Each is a program
with three words: `prepare URL`, `put URL JOBS`, `work URL …`; some know `drip URL RATE`, single jobs evenly spaced, and
`singles URL JOBS`, one job after the other.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from forebay_proof.bench.clients.processes import ROOT, Clients

DIRECTORY: Final = ROOT / ".venv-bench"
PYTHON: Final = DIRECTORY / "bin" / "python"
NODE_ENV: Final = {"NODE_PATH": str(DIRECTORY / "node_modules"), "NODE_ENV": "production"}


@dataclass(frozen=True)
class Peer:
    """One layout of a project: `work` are the words for its workers, `left` is the query for jobs that are not done.

    `node`: the name of its package there, if it is not Python's. `slower`: its backlog is so many times smaller, since
    it would take minutes.
    """

    name: str
    project: str
    command: Sequence[str | Path]
    processes: int
    work: Sequence[int]
    settings: str
    left: str
    slower: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    node: str = ""

    def prepare(self, url: str, clients: Clients) -> None:
        clients.run("prepare", [*self.command, "prepare", url], self.env)

    def put(self, url: str, clients: Clients, group: str, jobs: int) -> None:
        clients.run(group, [*self.command, "put", url, str(jobs)], self.env)

    def singles(self, url: str, clients: Clients, group: str, jobs: int) -> None:
        clients.run(group, [*self.command, "singles", url, str(jobs)], self.env)

    def drip(self, url: str, clients: Clients, rate: int) -> None:
        clients.start("producer", [*self.command, "drip", url, str(rate)], self.env)

    def start(self, url: str, clients: Clients) -> None:
        for _ in range(self.processes):
            clients.start("worker", [*self.command, "work", url, *map(str, self.work)], self.env)


class Peers:
    """All that a benchmark knows; `here` are those that can be measured."""

    def __init__(self, *known: Peer) -> None:
        self._known = known

    @cached_property
    def versions(self) -> dict[str, str]:
        """Of each project; empty if it is not here."""
        return {peer.project: version_of(peer.project, peer.node) for peer in self._known}

    def here(self) -> list[Peer]:
        return [peer for peer in self._known if self.versions[peer.project]]

    @property
    def projects(self) -> set[str]:
        """Of all that are known."""
        return {peer.project for peer in self._known}

    def layouts(self, project: str) -> list[Peer]:
        """Where two come out alike in trials both are measured, and the better one counts."""
        return [peer for peer in self.here() if peer.project == project]

    def described(self, way_out: str) -> Iterator[str]:
        """For people, a line each."""
        for peer in self.here():
            fewer = f"; 1/{peer.slower} of the jobs" if peer.slower > 1 else ""
            yield f"{peer.name} (version {self.versions[peer.project]}): {peer.settings}{fewer}"
        if missing := sorted(project for project, version in self.versions.items() if not version):
            yield f"not installed, so their figures are left out: {', '.join(missing)} ({way_out})"


def version_of(project: str, node: str = "") -> str:
    """Of a project, or of its package in Node; empty if it is not here."""
    if node:
        package = DIRECTORY / "node_modules" / node / "package.json"
        return str(json.loads(package.read_text())["version"]) if shutil.which("node") and package.exists() else ""
    if not PYTHON.exists():
        return ""
    code = f"import {project}; from importlib.metadata import version; print(version({project!r}))"
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, timeout=60, check=False).stdout.strip()
