"""The list of mutants stays true: each breaks a text that stands in the source once, and names tests that exist."""

import re
from pathlib import Path

import pytest

from forebay_proof.conformance import cases
from tests.mutants.catalogue import ALL
from tests.mutants.guards import Mutant

ROOT = Path(__file__).parents[2]
CONTRACT = "tests/stores/test_conformance.py"
STORES = ("memory", "journaled", "sqlite", "postgres", "pooled", "redis", "streams")


@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.name) for mutant in ALL])
def test_a_mutant_breaks_one_place_and_names_its_tests(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    files = [test.partition("::")[0] for test in mutant.tests if test.startswith("tests/")]
    assert files
    assert all((ROOT / file).exists() for file in files)


@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=mutant.name) for mutant in ALL if CONTRACT in mutant.tests])
def test_a_mutant_selects_cases_of_the_contract_that_exist(mutant: Mutant) -> None:
    """Each word of `-k` stands in the name of a case, unless it names another test of the file."""
    words = re.findall(r"[\w-]+", mutant.tests[mutant.tests.index("-k") + 1]) if "-k" in mutant.tests else []
    tests = (ROOT / CONTRACT).read_text("utf-8")
    names = [f"{store}-{case.theme}-{case.name}" for store in STORES for case in cases()]
    for word in words:
        assert word in ("and", "or", "not") or word in tests or any(word in name for name in names), word


def test_every_mutant_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in ALL}) == len(ALL)
