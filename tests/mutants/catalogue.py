"""Every mutant, in the order in which they run."""

from typing import Final

from tests.mutants.application import APPLICATION_MUTANTS
from tests.mutants.cells import CELL_MUTANTS
from tests.mutants.contrib import CONTRIB_MUTANTS
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
from tests.mutants.payloads import PAYLOAD_MUTANTS
from tests.mutants.postgres import POSTGRES_MUTANTS
from tests.mutants.redis import REDIS_MUTANTS
from tests.mutants.security import SECURITY_MUTANTS
from tests.mutants.spark import SPARK_MUTANTS
from tests.mutants.sqlite import SQLITE_MUTANTS
from tests.mutants.transactions import TRANSACTION_MUTANTS
from tests.mutants.watching import WATCHING_MUTANTS

ALL: Final[tuple[Mutant, ...]] = (
    *MUTANTS,
    *APPLICATION_MUTANTS,
    *PAYLOAD_MUTANTS,
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
    *SPARK_MUTANTS,
    *TRANSACTION_MUTANTS,
    *CONTRIB_MUTANTS,
    *EVENT_MUTANTS,
    *WATCHING_MUTANTS,
)
