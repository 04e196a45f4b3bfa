"""A standalone cluster of Spark on loopback: a master, and two workers that Spark takes for two machines.

They are real processes with real sockets, from the package PySpark. Executors are processes of the workers' own, which
share nothing with the driver, no Python, path or directory: what they need they get as on any cluster.
"""

import json
import os
import re
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from pyspark.find_spark_home import _find_spark_home

from forebay.spark.java import java_home
from tests.waiting import PATIENCE, eventually

SRC = Path(__file__).parents[2] / "src"
HOSTS = {"127.0.0.1": 1, "127.0.0.2": 2}
"""The machines, and the cores that each says it has: together others than the driver's."""

SLOTS = sum(HOSTS.values())
HOME = next(iter(HOSTS))
_DAEMON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false"


def free_port() -> int:
    with socket.create_server((HOME, 0)) as server:
        port: int = server.getsockname()[1]
        return port


class Cluster:
    """`with Cluster(directory) as cluster:`; it is ready when both workers are."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "cluster.log"
        self._directory = directory
        self._page = self.url = ""
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def environment(self) -> dict[str, str]:
        """What its users have: this Forebay."""
        return self._bare | {"PYTHONPATH": str(SRC)}

    @property
    def _bare(self) -> dict[str, str]:
        """What its machines have: Java, and nothing that leads to Forebay."""
        home = java_home()
        bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
        bare |= {"SPARK_LOCAL_IP": HOME, "SPARK_DAEMON_JAVA_OPTS": _DAEMON}
        return bare | ({} if home is None else {"JAVA_HOME": home})

    def __enter__(self) -> Self:
        try:
            self._start("master.Master", "--host", HOME, "--port", "0", "--webui-port", "0")
            eventually(self._finds_master, "the master is there", details=self._log.read_text)
            for host, cores in HOSTS.items():
                words = ["--host", host, "--port", "0", "--webui-port", "0", "--cores", str(cores), "--memory", "1g"]
                self._start("worker.Worker", *words, "--work-dir", str(self._directory / host), self.url)
            eventually(lambda: self._alive() == len(HOSTS), "both workers are there", details=self._log.read_text)
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
        return [each["state"] for each in self._status()["completedapps"]]

    def _start(self, name: str, *words: str) -> None:
        command = [os.path.join(_find_spark_home(), "bin", "spark-class"), f"org.apache.spark.deploy.{name}", *words]
        with self._log.open("ab") as log:
            self._processes.append(subprocess.Popen(command, env=self._bare, stdout=log, stderr=log))

    def _finds_master(self) -> bool:
        """It has chosen its ports, and says which."""
        said = self._log.read_text()
        url, page = (
            re.search(words, said) for words in (r"master at (spark://\S+)", r"MasterWebUI to .* at (http://\S+)")
        )
        if url is not None and page is not None:
            self.url, self._page = url[1], f"{page[1]}/json/"
        return bool(self.url)

    def _alive(self) -> int:
        """A page that is not whole yet is none."""
        try:
            return int(self._status()["aliveworkers"])
        except (OSError, ValueError):
            return 0

    def _status(self) -> dict[str, Any]:
        with urlopen(self._page, timeout=PATIENCE) as answer:
            status: dict[str, Any] = json.load(answer)
        return status

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(PATIENCE)
