"""An app for workers on Spark: each job leaves its effect, with its fence, in a file of its process."""

from pathlib import Path
from typing import Final

_APP: Final = """
import json, os, signal, time
from datetime import UTC, datetime
from pathlib import Path
from forebay import Context, Forebay

fb = Forebay()
HERE = Path({home!r})


@fb.job(queue="burst")
def work(seq: int, ctx: Context | None = None) -> None:
    {first}
    job, delivery = ctx.fence
    line = dict(seq=seq, job_id=job, delivery=delivery, effect_at=datetime.now(UTC).isoformat())
    with open(HERE / "effects" / str(os.getpid()), "a") as out:
        out.write(json.dumps(line) + "\\n")
"""


def an_app(directory: Path, first: str = "pass") -> str:
    """What `--on-spark` takes: an app in this directory whose jobs do `first` before they leave their effect."""
    name = f"burst_{directory.name.replace('-', '_')}"
    (directory / f"{name}.py").write_text(_APP.format(home=str(directory), first=first))
    (directory / "effects").mkdir()
    return f"{name}:fb"
