"""The proof: the ledger of the fleet's store, the receipts of its producers and the effects of its handlers, on Spark.

It is the public command `forebay audit`. It reads nothing of the queue but its ledger.
"""

import os
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

from forebay.demo.title import title

RECEIPTS, EFFECTS = "receipts.ndjson", "effects.ndjson"
SMALL_DATA = (
    "--conf spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 --conf spark.sql.codegen.wholeStage=false "
    "--conf spark.sql.codegen.factoryMode=NO_CODEGEN --conf spark.python.sql.dataFrameDebugging.enabled=false "
    "--conf spark.sql.adaptive.enabled=false --conf spark.sql.shuffle.partitions=1 pyspark-shell"
)
"""Less is planned and compiled: what runs for seconds is over sooner."""


def prove(directory: Path, url: str, evidence: Path, report: Path) -> bool:
    """Whether the audit passes; without PySpark there is nothing to say."""
    title(7, "Spark reads the ledger and proves it: every job, every delivery, every effect")
    if find_spec("pyspark") is None:
        print("   left out: PySpark is not installed; pip install 'forebay[spark]'")
        return True
    write_effects(evidence, directory / EFFECTS)
    words = ["--lake", "lake", "--store", url, "--receipts", RECEIPTS, "--effects", EFFECTS]
    words += ["--drained"]
    print(f"   forebay audit {' '.join(words)}\n   starting Spark: this takes a while", flush=True)
    command = [sys.executable, "-m", "forebay", "audit", *words, "--report", str(report.resolve())]
    environment = {"PYSPARK_SUBMIT_ARGS": SMALL_DATA, **os.environ}
    return subprocess.run(command, cwd=directory, env=environment, check=False).returncode == 0


def write_effects(evidence: Path, file: Path) -> None:
    with sqlite3.connect(evidence) as database, file.open("w") as out:
        for seq, job, delivery, at in database.execute("SELECT seq, job, delivery, at FROM effect"):
            when = datetime.fromtimestamp(at, UTC).isoformat()
            out.write(f'{{"seq": {seq}, "job_id": {job}, "delivery": {delivery}, "effect_at": "{when}"}}\n')
