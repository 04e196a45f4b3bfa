"""One Spark session for all tests of the pipeline. All of them run in one worker of xdist, so one JVM serves them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from forebay.spark.session import spark_session

    ground = tmp_path_factory.mktemp("spark")
    session = spark_session(
        "local[2,3]",
        conf={"spark.sql.warehouse.dir": str(ground / "warehouse"), "spark.local.dir": str(ground)},
        quick=True,
    )
    yield session
    session.stop()
