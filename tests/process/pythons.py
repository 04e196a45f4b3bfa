"""Runs the tests of pure code and of the embedded stores on another Python: `python -m tests.process.pythons 3.13`.

The interpreter is that of the path or of pyenv. It gets a clean environment with the pinned dependencies, outside of
the checkout, which is removed at the end. Types and lint are of the language version, not of the interpreter: they are
not run again.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.process.release import ROOT, VERSIONS, find_python

SLICES: Final = (("tests/unit",), ("tests/stores", "-k", "memory or sqlite"))
_PYTEST: Final = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "-m", "not nightly")


def install(python: str, environment: Path) -> str:
    """The interpreter of a new environment with this tree and its pinned dependencies."""
    subprocess.run([python, "-m", "venv", str(environment)], check=True, timeout=120)
    installed = str(environment / "bin" / "python")
    pip = [installed, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    locked = ["--require-hashes", "-r", str(ROOT / "requirements" / "dev.txt")]
    trees = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT), "--editable", str(ROOT / "proof")]
    for words in (locked, trees):
        subprocess.run([*pip, *words], check=True, timeout=1_800)
    return installed


def main(version: str) -> int:
    python = find_python(version)
    if python is None:
        print(
            f"no Python {version} on the path or in pyenv; one of {', '.join(VERSIONS)} may be there", file=sys.stderr
        )
        return 2
    with TemporaryDirectory(prefix="forebay-python-") as folder:
        installed = install(python, Path(folder) / "venv")
        print(subprocess.check_output([installed, "--version"], text=True).strip(), flush=True)
        codes = [subprocess.run([installed, *_PYTEST, *words], cwd=ROOT, check=False).returncode for words in SLICES]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
