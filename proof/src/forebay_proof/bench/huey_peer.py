"""huey as a client of `bench.sqlite`, in `.venv-bench`: `put FILE JOBS`, `take FILE JOBS`; prints the seconds.

Its own calls: enqueue one by one; dequeue and execute a no-op, without an acknowledgement. `fsync=True` is what the
figures of Forebay beside it promise.
"""

import sys
import time
from typing import Any

from forebay_proof.load.payloads import payloads


def no_op(**_: object) -> None:
    pass


def main(what: str, file: str, jobs: int) -> None:
    from huey import SqliteHuey  # type: ignore[import-not-found,unused-ignore]

    app: Any = SqliteHuey(filename=file, fsync=True, results=False)
    task = app.task()(no_op)
    (load,) = payloads(1)
    began = time.perf_counter()
    for _ in range(jobs):
        if what == "put":
            task(**load)
        else:
            app.execute(app.dequeue())
    print(time.perf_counter() - began)
    app.storage.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
