"""A fail-over to an asynchronous Postgres standby: the audit names every job that it lost, and no other."""

import pytest
from pyspark.sql import SparkSession

from forebay import open_store
from forebay_proof.servers.postgres import REPLICATED, PostgresServer, StopMode, database_of, join_hosts
from tests.command_result import Run
from tests.spark.fail_overs import FailOver

pytestmark = pytest.mark.timeout(300)


def test_what_an_asynchronous_standby_lacks_is_named_by_the_audit(run: Run, spark: SparkSession) -> None:
    with PostgresServer(private=True, settings=REPLICATED) as primary, primary.standby() as standby:
        name = database_of(primary.create_database())
        url = join_hosts(primary.url(name), standby.url(name))
        pair = FailOver(open_store(url))
        pair.put(30)
        pair.work(10)
        primary.wait_until("SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()")
        jobs = spark.read.format("forebay").option("url", standby.url(name)).option("table", "jobs").load()
        assert jobs.filter("state = 'ready'").count() == 20, "a standby can be read"
        standby.stop_streaming()
        receipts = pair.put(12)
        done_and_forgotten = pair.work(3)
        primary.stop(StopMode.KILL)
        standby.promote()
        lost = pair.lost()
        assert lost == receipts.keys(), "so much was acknowledged, and the new primary has none of it"
        assert not set(pair.put(5).values()) & set(receipts.values()), "no id of a lost job is assigned again"
        while pair.work(100):
            pass
        assert pair.audit(run, url) == {"lost": lost, "repeated_effect": set(done_and_forgotten)}
        pair.store.close()
