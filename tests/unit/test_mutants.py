"""The list of mutants stays true: each breaks a text that stands in the source once, and names tests that exist.

The runner would find that after an hour: a test that was renamed, a word that selects nothing.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from forebay_proof.conformance import cases
from tests.mutants.catalogue import ALL
from tests.mutants.guards import Mutant
from tests.mutants.layers import READ_TEXT, ROOMS, second_layers, with_a_comment
from tests.mutants.run import PARTS, changes_without_effect

ROOT = Path(__file__).parents[2]
CONTRACT = "tests/stores/test_conformance.py"
STORES = "memory journaled sqlite postgres pooled redis streams clustered two_cells five_cells one_cell".split()
NAMES = [f"{store}-{case.theme}-{case.name}" for store in STORES for case in cases()]


@cache
def text_of(file: str) -> str:
    """Of a file of tests, with its name, or of a folder of them."""
    files = sorted((ROOT / file).rglob("*.py")) or [ROOT / file]
    return "\n".join(f"{path.name}\n{path.read_text('utf-8')}" for path in files if path.exists())


def missing(tests: tuple[str, ...]) -> Iterator[str]:
    """The tests and the words of `-k` that these arguments of pytest name and that stand nowhere."""
    files = [test.partition("::") for test in tests if test.startswith("tests/")]
    for file, _, name in files:
        if not (ROOT / file).exists():
            yield file
        elif name and f"def {name.partition('[')[0]}(" not in text_of(file):
            yield f"{file}::{name}"
    text = "\n".join(text_of(file) + text_of(f"{Path(file).parent}/conftest.py") for file, _, _ in files)
    words = re.findall(r"[\w-]+", tests[tests.index("-k") + 1]) if "-k" in tests else []
    for word in words:
        if word not in ("and", "or", "not") and not _selects(word, text, any(file == CONTRACT for file, _, _ in files)):
            yield f"-k {word}"


def _selects(word: str, text: str, contract: bool) -> bool:
    """Whether it stands in the files, is part of a case's name, or joins ids that stand there: `sqlite-waits`."""
    if contract and any(word in name for name in NAMES):
        return True
    return all(part in text for part in ([word] if contract else word.split("-")))


@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.name) for mutant in ALL])
def test_a_mutant_breaks_one_place_and_names_its_tests(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.tests[0].startswith("tests/")
    assert list(missing(mutant.tests)) == []


@pytest.mark.parametrize(
    ("tests", "complaint"),
    [
        (("tests/unit/test_gone.py",), "tests/unit/test_gone.py"),
        (("tests/unit/test_mutants.py::test_gone",), "tests/unit/test_mutants.py::test_gone"),
        (("tests/unit/test_heap.py", "-k", "heap and " + "un" + "heard"), "-k unheard"),
        ((CONTRACT, "-k", "memory-gone"), "-k memory-gone"),
    ],
)
def test_what_names_no_test_is_found(tests: tuple[str, ...], complaint: str) -> None:
    assert list(missing(tests)) == [complaint]


@pytest.mark.nightly
def test_every_mutant_selects_a_test() -> None:
    """By what pytest collects, where a word of `-k` may stand in a file and in the name of no test."""
    files = sorted({test.partition("::")[0] for mutant in ALL for test in mutant.tests if test.startswith("tests/")})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-m", "not nightly"]
    collected = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ids = [line for line in collected.splitlines() if "::" in line]
    sets = {mutant.tests: mutant.name for mutant in ALL}
    assert [name for tests, name in sets.items() if not any(_is_selected(each, tests) for each in ids)] == []


def _is_selected(node: str, tests: tuple[str, ...]) -> bool:
    def stands(word: str, /, **_: object) -> bool:
        return word.lower() in node.lower()

    named = [test for test in tests if test.startswith("tests/")]
    if not any(node == test or node.startswith((f"{test}::", f"{test}[", f"{test}/")) for test in named):
        return False
    return "-k" not in tests or Expression.compile(tests[tests.index("-k") + 1]).evaluate(stands)


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL)


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in ROOMS])
def test_the_other_layers_of_a_room_exist(pattern: str) -> None:
    layers = next(layers for room, layers in ROOMS if room == pattern)
    assert [found for layer in layers for found in missing(layer.tests)] == []
    assert all((ROOT / file).exists() for file in READ_TEXT)


def test_a_comment_changes_the_text_of_a_guard_and_nothing_else() -> None:
    """By such a change the runner shows that a second layer judges behaviour (`tests/mutants/layers.py`)."""
    lines = [mutant for mutant in ALL if mutant.file.endswith(".py") and "\n" not in mutant.old]
    assert len(lines) > len(ALL) / 3
    for mutant in lines[::20]:
        before = (ROOT / mutant.file).read_text("utf-8")
        changed = with_a_comment(mutant, before)
        after = before.replace(changed.old, changed.new)
        assert before.count(changed.old) == 1
        assert after.count(mutant.old) == 2
        assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(before))
        assert second_layers(changed) == second_layers(mutant)


def test_every_layer_has_a_change_without_effect_to_pass() -> None:
    assert set(changes_without_effect(list(ALL))) == {layer for mutant in ALL for layer in second_layers(mutant)}


def test_the_copy_has_what_the_layers_read() -> None:
    assert all((ROOT / part).exists() for part in PARTS)
    tops = re.compile(r"(?:ROOT|parents\[2\]) / \"([\w.]+)")
    named = {top for _, layers in ROOMS for layer in layers for top in tops.findall(text_of(layer.tests[0]))}
    assert named - {".venv"} <= set(PARTS)
