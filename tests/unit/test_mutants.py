"""The list of mutants stays true: each breaks a text that stands in the source once, and names tests that exist."""

import re
from pathlib import Path

import pytest

from forebay_proof.conformance import cases
from tests.mutants.application import APPLICATION_MUTANTS
from tests.mutants.cells import CELL_MUTANTS
from tests.mutants.crashes import CRASH_MUTANTS
from tests.mutants.dashboard import DASHBOARD_MUTANTS
from tests.mutants.events import EVENT_MUTANTS
from tests.mutants.experiments import EXPERIMENT_MUTANTS
from tests.mutants.gates import GATE_MUTANTS
from tests.mutants.guards import MUTANTS, Mutant
from tests.mutants.intake import INTAKE_MUTANTS
from tests.mutants.job_log import JOB_LOG_MUTANTS
from tests.mutants.lab import LAB_MUTANTS
from tests.mutants.ledger import LEDGER_MUTANTS
from tests.mutants.logs import LOG_MUTANTS
from tests.mutants.metrics import METRICS_MUTANTS
from tests.mutants.postgres import POSTGRES_MUTANTS
from tests.mutants.redis import REDIS_MUTANTS
from tests.mutants.security import SECURITY_MUTANTS
from tests.mutants.spark import SPARK_MUTANTS
from tests.mutants.sqlite import SQLITE_MUTANTS
from tests.mutants.transactions import TRANSACTION_MUTANTS
from tests.mutants.watching import WATCHING_MUTANTS

ROOT = Path(__file__).parents[2]
CONTRACT = "tests/stores/test_conformance.py"
STORES = ("memory", "journaled", "sqlite", "postgres", "pooled", "redis", "streams")
ALL = [
    *MUTANTS,
    *APPLICATION_MUTANTS,
    *CELL_MUTANTS,
    *CRASH_MUTANTS,
    *DASHBOARD_MUTANTS,
    *INTAKE_MUTANTS,
    *GATE_MUTANTS,
    *JOB_LOG_MUTANTS,
    *LAB_MUTANTS,
    *EXPERIMENT_MUTANTS,
    *LEDGER_MUTANTS,
    *LOG_MUTANTS,
    *METRICS_MUTANTS,
    *POSTGRES_MUTANTS,
    *REDIS_MUTANTS,
    *SECURITY_MUTANTS,
    *SQLITE_MUTANTS,
    *TRANSACTION_MUTANTS,
    *EVENT_MUTANTS,
    *WATCHING_MUTANTS,
    *SPARK_MUTANTS,
]


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
