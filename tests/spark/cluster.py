"""A standalone cluster of Spark on loopback: a master, and two workers that Spark takes for two machines.

They are real processes with real sockets, from the package PySpark. Executors are processes of the workers' own, so
nothing of the driver's is there by accident: what they need they get as on any cluster.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from threading import Event
from time import monotonic
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from pyspark.find_spark_home import _find_spark_home

from forebay.spark.java import java_home

SRC = Path(__file__).parents[2] / "src"
HOSTS = "127.0.0.1", "127.0.0.2"
PATIENCE = 120.0


def free_port() -> int:
    with socket.create_server((HOSTS[0], 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Cluster:
    """`with Cluster(directory) as cluster:`; it is ready when both workers are."""

    def __init__(self, ground: Path) -> None:
        self._ground = ground
        self._page = f"http://{HOSTS[0]}:{free_port()}/json/"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = f"spark://{HOSTS[0]}:{free_port()}"

    @property
    def environment(self) -> dict[str, str]:
        """What its machines have, and its users: Python with Forebay, and Java."""
        home = java_home()
        own = {"PYTHONPATH": str(SRC), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": HOSTS[0]}
        return os.environ | own | ({} if home is None else {"JAVA_HOME": home})

    def __enter__(self) -> Self:
        try:
            port, page = self.url.rpartition(":")[2], self._page.split(":")[2].partition("/")[0]
            self._start("master.Master", "--host", HOSTS[0], "--port", port, "--webui-port", page)
            for host in HOSTS:
                words = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
                self._start("worker.Worker", *words, "--work-dir", str(self._ground / host), self.url)
            until = monotonic() + PATIENCE
            while self._alive() < len(HOSTS):
                assert monotonic() < until, "the cluster did not start"
                Event().wait(0.2)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def finished(self) -> list[str]:
        """The states of the applications that ran there."""
        return [each["state"] for each in self._told()["completedapps"]]

    def _start(self, name: str, *words: str) -> None:
        command = [os.path.join(_find_spark_home(), "bin", "spark-class"), f"org.apache.spark.deploy.{name}", *words]
        with (self._ground / "cluster.log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def _alive(self) -> int:
        try:
            return int(self._told()["aliveworkers"])
        except OSError:
            return 0

    def _told(self) -> dict[str, Any]:
        with urlopen(self._page, timeout=10) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(PATIENCE)
