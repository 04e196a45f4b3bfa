"""An app whose handlers log a secret of their payload and raise it, one a place in which handlers run."""

import logging
import sys

from forebay.client import Forebay

app = Forebay("memory://")
_log = logging.getLogger("shop")
_log.setLevel(logging.INFO)
_log.propagate = False


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to whatever is the standard error now."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_log.addHandler(_Stderr())


def _leak(session_id: str, note: str) -> None:
    _log.info("using %s for %s", session_id, note)
    raise KeyError(session_id)


@app.job
def thread(session_id: str, note: str) -> None:
    _leak(session_id, note)


@app.job
async def coroutine(session_id: str, note: str) -> None:
    _leak(session_id, note)


@app.job(isolate=True)
def isolated(session_id: str, note: str) -> None:
    _leak(session_id, note)
