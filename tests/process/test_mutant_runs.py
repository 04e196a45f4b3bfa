"""The runner of mutants, on copies of this tree: what it counts as a kill, and what it does not."""

from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.mutants import run
from tests.mutants.catalogue import ALL
from tests.mutants.guards import Mutant
from tests.mutants.layers import READ_TEXT, ROOMS, with_a_comment
from tests.mutants.run import Outcome

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1_800)]

FILE = "src/forebay/core/names.py"
GUARD = "    return _NAME.fullmatch(name) is not None\n"
TESTS = ("tests/unit/test_names.py", "-k", "length_is_exact")
LAYERS = {layer.name: layer for room, layers in ROOMS if room == "src/forebay/core/*" for layer in layers}


@pytest.fixture
def trees(tmp_path: Path) -> SimpleQueue[Path]:
    found: SimpleQueue[Path] = SimpleQueue()
    for name in "ab":
        run.copy_tree(tmp_path / name)
        found.put(tmp_path / name)
    return found


def mutant(name: str, new: str) -> Mutant:
    return Mutant(name, FILE, GUARD, new, TESTS)


def test_only_a_failed_test_or_the_time_limit_kills_a_mutant(
    trees: SimpleQueue[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "PATIENCE", 45)
    mutants = [
        mutant("red", "    return True\n"),
        mutant("endless", f"    while True:\n        pass\n{GUARD}"),
        mutant("same", f"    name = name[:]\n{GUARD}"),
        mutant("broken", f"    (\n{GUARD}"),
    ]
    assert run.judge(mutants, trees) == 1
    shown = capsys.readouterr().out
    lines = [f"{Outcome.FAILED.value}: red", f"{Outcome.LATE.value}: endless"]
    lines += [f"ALIVE: same: {Outcome.PASSED.value}", f"ALIVE: broken: {Outcome.NOT_RUN.value}"]
    assert all(line in shown for line in lines), shown
    assert "2 passed (1 by the time limit), 2 failed" in shown


@pytest.mark.parametrize("name", ["unit", "contract"])
def test_a_change_without_effect_survives_a_layer(trees: SimpleQueue[Path], name: str) -> None:
    """The quick ones; `--twice` shows it of each layer that it counts."""
    source = (run.ROOT / FILE).read_text()
    found = run.try_mutant(with_a_comment(mutant("same", GUARD), source), LAYERS[name].tests, trees, 1_500)
    assert found.outcome is Outcome.PASSED, found.output


def test_a_layer_that_reads_the_text_would_not_pass(trees: SimpleQueue[Path]) -> None:
    """The list of mutants itself, on a change without effect in the file of one."""
    (listed,) = [each for each in ALL if each.name == "pages escape nothing"]
    change = with_a_comment(listed, (run.ROOT / listed.file).read_text())
    reads = tuple(file for file in READ_TEXT if file.endswith("test_mutants.py"))
    assert run.try_mutant(change, reads, trees, 300).outcome is Outcome.FAILED
