"""Exactly once, where effect and job are rows of one database: the effect and the end of its job commit together.

The handler writes into its own table by `ctx.transaction()`. Its first try fails after the write: the row is rolled
back with it. The second one commits, and with it the job is done. Nothing in between can be seen.

    python examples/transactional_ack.py [postgresql://…]      without a URL it starts a server of its own
"""

import sys

import psycopg

from forebay import Context, Forebay
from forebay.work.worker import Worker
from forebay_proof.servers.postgres import PostgresServer


def run(url: str) -> int:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS sent (job bigint, receipt int)")
        connection.execute("TRUNCATE sent")
    fb = Forebay(url)

    @fb.job(max_attempts=3)
    def send_receipt(receipt: int, ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO sent VALUES (%s, %s)", (ctx.job.id, receipt))
            if ctx.job.attempt == 1:
                raise ConnectionError("the mail server hung up")

    ids = [fb.enqueue("send_receipt", {"receipt": receipt}).id for receipt in range(3)]
    worker = Worker(fb)  # `forebay worker app:fb` in real life
    worker.start()
    for job_id in ids:
        fb.wait_for(job_id)
    worker.drain(5)
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT receipt FROM sent ORDER BY receipt").fetchall()
    left = sum(backlog.depth for backlog in fb.backlog())
    print(f"each handler ran twice, each receipt is there once: {[receipt for (receipt,) in rows]}; {left} jobs left")
    fb.close()
    return 0 if [receipt for (receipt,) in rows] == [0, 1, 2] and not left else 1


def main() -> int:
    if len(sys.argv) > 1:
        return run(sys.argv[1])
    server = PostgresServer()
    server.start()
    try:
        return run(server.create_database())
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
