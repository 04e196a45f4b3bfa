"""Builds what a release consists of and tries it as a user would: `make release`.

Both wheels and source archives go to dist/. Their metadata must agree with each other and with CHANGELOG.md. Then each
Python at hand gets a clean environment with the product's wheel and its four dependencies, and runs the README's first
example with it. Nothing is published.
"""

import argparse
import re
import shutil
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from tests.process.readme import run_first_example

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
_RELATIVE = re.compile(r"""\]\((?!\w+://|#)([^)]*)\)|(?:src|srcset|href)="(?!\w+://|#)([^"]*)\"""")


class ReleaseError(Exception):
    """Something that must be mended before a release."""


def build(target: Path) -> list[Path]:
    """Both distributions, as wheels and as source archives."""
    shutil.rmtree(target, ignore_errors=True)
    for project in (ROOT, ROOT / "proof"):
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(target)]
        subprocess.run(command, cwd=project, check=True, capture_output=True, timeout=300)
    return sorted(target.glob("*.whl"))


def check_metadata(wheels: list[Path], changelog: str) -> str:
    """The version that both wheels have."""
    found = {}
    for wheel in wheels:
        with ZipFile(wheel) as packed:
            (name,) = [each for each in packed.namelist() if each.endswith(".dist-info/METADATA")]
            found[wheel.name] = Parser().parsestr(packed.read(name).decode())
    names = {str(each["Name"]) for each in found.values()}
    if names != {"forebay", "forebay-proof"}:
        raise ReleaseError(f"expected wheels of forebay and forebay-proof, built {sorted(names)}")
    versions = {str(each["Version"]) for each in found.values()}
    if len(versions) != 1:
        raise ReleaseError(f"both wheels need one version, they have {sorted(versions)}")
    for name, each in found.items():
        _check_readme(name, str(each.get_payload()))
        missing = [field for field in ("Summary", "License-Expression", "Requires-Python") if not each[field]]
        if missing:
            raise ReleaseError(f"{name} lacks {', '.join(missing)}")
    (version,) = versions
    if not re.search(rf"^## \[(Unreleased|{re.escape(version)})\]", changelog, re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no section [{version}] and none [Unreleased]")
    return version


def _check_readme(name: str, text: str) -> None:
    """A package index shows the readme alone, without the files beside it."""
    if not text.strip():
        raise ReleaseError(f"{name} has no readme")
    elsewhere = ["".join(found) for found in _RELATIVE.findall(text)]
    if elsewhere:
        raise ReleaseError(f"the readme of {name} needs files that a package index has not: {', '.join(elsewhere)}")


def pythons(named: list[str]) -> list[str]:
    """Those that were named, or every supported version at hand."""
    found = [shutil.which(each) for each in named] if named else [find_python(version) for version in VERSIONS]
    usable = [each for each in found if each is not None and _runs(each)]
    if named and len(usable) < len(named):
        raise ReleaseError(f"not all of {', '.join(named)} run")
    return usable or [sys.executable]


def find_python(version: str) -> str | None:
    """The interpreter of this version on the path, else that of pyenv."""
    on_path = shutil.which(f"python{version}")
    if on_path is not None and _runs(on_path):
        return on_path
    prefix = [shutil.which("pyenv") or "false", "prefix", version]
    found = subprocess.run(prefix, capture_output=True, text=True, check=False).stdout.strip()
    return f"{found}/bin/python3" if found and _runs(f"{found}/bin/python3") else None


def _runs(python: str) -> bool:
    """A launcher on the path may lead nowhere."""
    return subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0


def try_wheel(python: str, wheel: Path) -> str:
    """Install the wheel into a clean environment, run the README there; the version of that Python."""
    with TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        subprocess.run([python, "-m", "venv", str(environment)], check=True, timeout=120)
        installed = str(environment / "bin" / "python")
        install = [installed, "-m", "pip", "--disable-pip-version-check", "--quiet", "install", str(wheel)]
        subprocess.run(install, check=True, timeout=600)
        place = Path(folder) / "app"
        place.mkdir()
        run_first_example(installed, place)
        return subprocess.check_output([installed, "--version"], text=True).strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--python", action="append", default=[], help="an interpreter; repeat for several")
    named = parser.parse_args().python
    try:
        wheels = build(ROOT / "dist")
        version = check_metadata(wheels, (ROOT / "CHANGELOG.md").read_text())
        print(f"built forebay and forebay-proof {version}: {', '.join(each.name for each in wheels)}")
        (product,) = [each for each in wheels if each.name.startswith("forebay-")]
        for python in pythons(named):
            print(f"{try_wheel(python, product)}: the wheel installs and the README runs")
    except (ReleaseError, subprocess.SubprocessError) as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    print("ready: tag the commit, then publish what is in dist/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
