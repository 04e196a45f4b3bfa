"""Commands of other packages: found by entry points, never in place of our own, and not searched for by a worker."""

from collections.abc import Iterator

import pytest

from forebay.cli import plugins
from forebay.cli.command import Command, Invocation
from forebay.cli.exits import CommandFailed


def run(_: Invocation) -> int:
    return 0


class Installed:
    """Stands for `importlib.metadata.entry_points` with one package installed."""

    def __init__(self, *names: str) -> None:
        self.commands = tuple(Command(name, f"{name} of a plugin", run, f"forebay {name}") for name in names)
        self.searches = 0

    def __call__(self, *, group: str) -> "Iterator[Installed]":
        assert group == "forebay.commands"
        self.searches += 1
        return iter([self])

    def load(self) -> tuple[Command, ...]:
        return self.commands


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    found = Installed("lint", "worker")
    monkeypatch.setattr(plugins, "entry_points", found)
    return found


def test_a_package_adds_a_command(installed: Installed) -> None:
    assert [command.summary for command in plugins.commands_for(["lint"]) if command.name == "lint"] == [
        "lint of a plugin"
    ]


def test_it_takes_none_that_is_there_already(installed: Installed) -> None:
    (worker,) = [command for command in plugins.all_commands() if command.name == "worker"]
    assert worker.summary != "worker of a plugin"


def test_a_command_of_this_package_starts_without_a_search(installed: Installed) -> None:
    assert "lint" not in {command.name for command in plugins.commands_for(["worker", "lint"])}
    assert installed.searches == 0


def test_a_command_of_the_proof_names_its_package(installed: Installed) -> None:
    with pytest.raises(CommandFailed, match=r"`sim` is in the package forebay-proof, which is not installed") as failed:
        plugins.commands_for(["sim", "--seed", "7"])
    assert failed.value.code == 2
