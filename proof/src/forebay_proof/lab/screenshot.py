"""A picture of the dashboard while something runs: the server that users start, and a real browser before it.

Needs `playwright` and a Chromium: the one on PATH, the one that `make servers` unpacked, or FOREBAY_CHROMIUM.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_UNPACKED: Final = Path(sys.prefix) / "chromium" / "run"
_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LINK: Final = re.compile(rb"https?://\S+/ui/\S+")
_START_SECONDS: Final = 60.0


class BrowserMissing(Exception):
    """What a browser needs is not on this machine."""


def chromium() -> str:
    """Where it is."""
    found = os.environ.get("FOREBAY_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None and _UNPACKED.exists():
        found = str(_UNPACKED)
    if found is None:
        raise BrowserMissing("no Chromium: install one, name it by FOREBAY_CHROMIUM, or run `make servers`")
    return found


@contextmanager
def browser() -> Iterator["Browser"]:
    """One Chromium process. Its sandbox needs a user of its own, which the root of a container is not."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise BrowserMissing("playwright is not installed; pip install playwright") from None
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=flags)
        try:
            yield started
        finally:
            started.close()


@contextmanager
def served(url: str) -> Iterator[str]:
    """`forebay serve` before a store; yields a link that opens its dashboard, once."""
    command = [
        sys.executable,
        "-m",
        "forebay",
        "serve",
        "--store",
        url,
        "--port",
        "0",
        "--one-time",
        "--no-maintenance",
        "--parent",
        str(os.getpid()),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as server:
        late = Timer(_START_SECONDS, server.kill)
        late.start()
        try:
            assert server.stdout is not None
            link = next((found[0] for line in server.stdout if (found := _LINK.search(line))), None)
            if link is None:
                raise BrowserMissing(f"no dashboard: forebay serve ended with {server.wait()}")
            late.cancel()
            yield link.decode()
        finally:
            late.cancel()
            server.send_signal(signal.SIGTERM)


def take_screenshot(url: str, out: Path, after: float) -> None:
    """The overview of a store's dashboard, when it has followed for so many seconds: its rates begin with it."""
    with served(url) as link, browser() as chrome:
        page = chrome.new_page(viewport={"width": 1360, "height": 900})
        page.goto(link)
        page.wait_for_url("**/ui/")
        page.wait_for_selector(".pulse[data-state=on]")
        page.wait_for_timeout(after * 1_000)
        page.screenshot(path=out)
