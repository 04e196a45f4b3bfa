"""A fault of the HTTP side: its server is killed while requests are under way.

Clients hand in jobs with an idempotency key and repeat it until they are answered. Whatever the server had done when it
was killed, each key is one job: the answers are receipts for the proof.
"""

import json
import signal
import subprocess
import sys
import time
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from random import Random
from threading import Event, Lock, Thread
from typing import Final

from forebay_proof.lab.chaos.fault import ChaosFault
from forebay_proof.lab.chaos.files import environment
from forebay_proof.lab.chaos.scene import Bite, Impossible, Scene, now, pause
from forebay_proof.load.app import QUEUE
from forebay_proof.servers.process import LOOPBACK, free_port

_CLIENTS: Final = 4
_PATIENCE: Final = 30.0
_ACCEPTED, _REPEATED, _AWAY = 202, 409, (429, 503)


class HttpSide:
    """A server on the store, and its clients."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._port = free_port()
        self._stop = Event()
        self._lock = Lock()
        self._under_way = 0
        self.answered_at = 0
        self._server: subprocess.Popen[bytes] | None = None
        words = ["keys", "create", "--role", "admin", "--json", "--store", scene.way]
        made = subprocess.run(
            [sys.executable, "-m", "forebay", *words], env=environment(), capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            raise Impossible(f"there is no HTTP side: {made.stderr.strip()[:200]}; pip install 'forebay[server]'")
        self._key: str = json.loads(made.stdout)["key"]
        self._clients = [Thread(target=self._hand_in, daemon=True) for _ in range(_CLIENTS)]

    def start(self) -> None:
        words = ["serve", "--port", str(self._port), "--store", self._scene.way, "--no-maintenance"]
        with (self._scene.directory / "serve.log").open("ab") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "forebay", *words], env=environment(), stdout=log, stderr=log
            )

    def begin(self) -> None:
        self.start()
        for client in self._clients:
            client.start()
        self._scene.until(lambda: self.answered_at, "the HTTP side answers", _PATIENCE)

    def kill(self) -> tuple[int, int]:
        """Its pid, and how many requests were under way."""
        assert self._server is not None
        deadline = time.monotonic() + 5
        while not self._under_way and time.monotonic() < deadline:
            pause(0.0005)
        self._server.send_signal(signal.SIGKILL)
        under_way = self._under_way
        self._server.wait()
        return self._server.pid, under_way

    def end(self) -> None:
        """Every client gets its last answer first."""
        self._stop.set()
        for client in self._clients:
            client.join(_PATIENCE)
            if client.is_alive():
                self._scene.report_failure("a client of the HTTP side never got its answer")
        self.close()

    def close(self) -> None:
        self._stop.set()
        if self._server is not None and self._server.poll() is None:
            self._server.kill()
            self._server.wait()

    def _hand_in(self) -> None:
        while not self._stop.is_set():
            (seq,) = self._scene.seqs(1)
            body = {"kind": "fast", "queue": QUEUE, "payload": {"seq": seq, "ms": 1}, "key": f"http-{seq}"}
            deadline = time.monotonic() + _PATIENCE
            job = None
            while job is None and time.monotonic() < deadline:
                job = self._ask(json.dumps(body))
            self._scene.add_receipts([(seq, job)])

    def _ask(self, body: str) -> int | None:
        connection = HTTPConnection(LOOPBACK, self._port, timeout=10)
        heads = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        with self._lock:
            self._under_way += 1
        try:
            connection.request("POST", "/jobs", body, heads)
            answer = connection.getresponse()
            output = json.loads(answer.read())
            if answer.status in (_ACCEPTED, _REPEATED):
                self.answered_at = now()
                return int(output["job_id"])
            if answer.status not in _AWAY:
                self._scene.report_failure(f"the HTTP side answered {answer.status}: {output}")
                self._stop.set()
        except (OSError, HTTPException, ValueError):
            pause(0.02)
        finally:
            with self._lock:
                self._under_way -= 1
            with suppress(OSError):
                connection.close()
        return None


class KillServer(ChaosFault, frozen=True):
    """kill -9 of `forebay serve` while requests are under way."""

    def prepare(self, scene: Scene) -> None:
        side = scene.memo["side"] = HttpSide(scene)
        scene.parts.callback(side.close)

    def strike(self, scene: Scene, rng: Random) -> Bite:
        side: HttpSide = scene.memo["side"]
        if not side.answered_at:
            side.begin()
        pause(rng.uniform(0.0, 0.3))
        pid, under_way = side.kill()
        killed_at = now()
        side.start()
        scene.until(lambda: side.answered_at > killed_at, "the HTTP side answers again", _PATIENCE)
        took = (side.answered_at - killed_at) / 1_000_000
        what = f"kill -9 {pid} with {under_way} requests under way; answers after {took:.1f} s"
        return Bite(under_way > 0, what, took=took)

    def finish(self, scene: Scene) -> None:
        side: HttpSide = scene.memo["side"]
        side.end()
