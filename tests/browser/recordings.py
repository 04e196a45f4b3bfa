"""Recordings of the terminal for the docs: `python -m tests.browser.recordings [folder]` plays the real program.

A recording is two SVGs, light and dark, of which the site shows the one of its own scheme: every line appears when the
program printed it. No script, no font from elsewhere.
"""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from forebay.work.console import COLOURS
from tests.docs.console import blocks

_COLUMNS = 130
_LINE = 19
_CLASSES = {code: name for name, code in COLOURS.items()}
_STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f; white-space: pre }
rect { fill: #f6f8fa } .bold { font-weight: bold } .dim { opacity: .6 } .red { fill: #b3261e } .green { fill: #1a7f37 }
.yellow { fill: #8a6100 } .blue { fill: #0550ae } .cyan { fill: #0f6b7a }
text.line { opacity: 0; animation: show .01s forwards } @keyframes show { to { opacity: 1 } }
@media (prefers-reduced-motion) { text.line { animation-delay: 0s !important } }
"""
_DARK = """rect { fill: #161b22 } text { fill: #e6edf3 } .red { fill: #ff7b72 } .green { fill: #7ee787 }
.yellow { fill: #e3b341 } .blue { fill: #79c0ff } .cyan { fill: #76e3ea }
"""
_SCHEMES = {"": _STYLE, "-dark": _STYLE + _DARK}
PAGE = Path(__file__).parents[2] / "docs" / "start" / "index.md"
"""Its first file is the app that is played, and its terminals type the same commands."""

_ADDRESS = re.compile(r"(?<=http://127\.0\.0\.1:)\d+")
_TOKEN = re.compile(r"(?<=/ui/login\?token=)\S+")


class Line(NamedTuple):
    at: float
    text: str


class Scene(NamedTuple):
    """A command as it is typed, which ends by itself or after some seconds. `more`: options that are not shown."""

    command: str
    seconds: float
    more: str = ""


RECORDINGS = {
    "first-job": (Scene("python app.py", 20), Scene("forebay dev app:fb", 12, "--port 0")),
    "dead-letter": (Scene("forebay explain 2", 20), Scene("forebay dlq ls --group", 20)),
}


def played(scene: Scene, home: Path) -> list[Line]:
    """What the program prints on a terminal, line by line."""
    master, slave = pty.openpty()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FOREBAY_URL": "sqlite:///jobs.db",
        "FOREBAY_RUN_DIR": str(home),
        "PYTHONUNBUFFERED": "1",
        "TERM": "xterm-256color",
        "COLUMNS": str(_COLUMNS),
    }
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        ["bash", "-c", f"exec {scene.command} {scene.more}"],
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    begin, lines, rest = monotonic(), [], b""
    while (chunk := _next(master, begin + scene.seconds - monotonic())) is not None:
        *whole, rest = (rest + chunk).split(b"\n")
        lines += [Line(monotonic() - begin, line.decode().rstrip("\r")) for line in whole]
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
    process.wait(30)
    os.close(master)
    return lines


def _next(master: int, patience: float) -> bytes | None:
    """The next output; None when the program or its time has ended."""
    if patience <= 0 or not select.select([master], [], [], patience)[0]:
        return None
    try:
        return os.read(master, 65_536) or None
    except OSError:
        return None


def app() -> str:
    """The app of the page."""
    return next(block.text for block in blocks(PAGE) if block.title == "app.py")


def shown(text: str, home: str) -> str:
    """A line without what differs from one recording to the next: the directory, the port, the token."""
    return _TOKEN.sub("…", _ADDRESS.sub("8321", text.replace(home, "/srv/mail")))


def spans(text: str) -> str:
    """Colours of the terminal as classes."""
    written, colour = "", ""
    for part in re.split(r"(\x1b\[[\d;]*m)", text):
        if part.startswith("\x1b"):
            colour = _CLASSES.get(part[2:-1], "")
        elif part:
            shown = escape(re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", part))
            written += f'<tspan class="{colour}">{shown}</tspan>' if colour else shown
    return written


def drawing(lines: list[Line], style: str = _STYLE) -> str:
    height = _LINE * (len(lines) + 1)
    rows = "\n".join(
        f'<text class="line" x="12" y="{_LINE * (number + 1)}" style="animation-delay: {line.at:.2f}s">'
        f"{spans(line.text)}</text>"
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_COLUMNS * 8}" height="{height}" role="img">'
        f'<style>{style}</style>\n<rect width="100%" height="100%" rx="6"/>\n{rows}\n</svg>\n'
    )


def record(folder: Path) -> list[Path]:
    """All of them, anew; one app, and one scene after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    with tempfile.TemporaryDirectory(prefix="forebay-") as home:
        Path(home, "app.py").write_text(app())
        for name, scenes in RECORDINGS.items():
            lines: list[Line] = []
            for scene in scenes:
                begin = lines[-1].at + 1 if lines else 0.0
                lines.append(Line(begin, f"\x1b[1m$ {scene.command}\x1b[0m"))
                lines += [Line(begin + line.at, shown(line.text, home)) for line in played(scene, Path(home))]
            for suffix, style in _SCHEMES.items():
                made.append(folder / f"{name}{suffix}.svg")
                made[-1].write_text(drawing(lines, style))
    return made


if __name__ == "__main__":
    for path in record(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/img")):
        sys.stdout.write(f"{path}  {path.stat().st_size // 1024} KiB\n")
