"""What goes to executors, and what is made of what Spark says when their Python does not start."""

import sys
import zipfile
from pathlib import Path

import pytest

from forebay.core.errors import Invalid
from forebay.spark import executors
from forebay.spark.executors import is_local, own_file, start_failure


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ('java.io.IOException: Cannot run program "py9": error=2, No such file', "there is no py9 on them"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11, PySpark",
            "Python 3.9 there, 3.11 here",
        ),
        ("/usr/bin/python3: No module named pyspark.daemon", "their Python has no pyspark.daemon"),
        ("ModuleNotFoundError: No module named 'forebay'", "their Python has no forebay"),
        ("java.lang.OutOfMemoryError: Java heap space", None),
    ],
)
def test_a_python_that_does_not_start_is_distinguished_from_other_faults(said: str, reason: str | None) -> None:
    assert start_failure(said) == reason


def test_a_local_master_is_no_cluster() -> None:
    assert [is_local(master) for master in ("local[2]", "local-cluster[1,1,1024]", "spark://host:7077", None)] == [
        *(True, False, False, False)
    ]


def test_only_modules_and_packages_of_the_working_directory_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, scratch = tmp_path / "home", tmp_path / "scratch"
    for file in ("mine.py", "ours/__init__.py", "ours/deep/part.sql", "ours/__pycache__/x.pyc"):
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        (home / file).write_text("")
    scratch.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.syspath_prepend(str(home))
    for name in ("mine", "ours"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        __import__(name)
    assert own_file("mine", scratch) == home / "mine.py"
    assert [own_file(name, scratch) for name in ("json", "forebay", "not_imported", "__main__")] == [None] * 4
    packed = own_file("ours", scratch)
    assert packed is not None
    with zipfile.ZipFile(packed) as archive:
        assert archive.namelist() == ["ours/__init__.py", "ours/deep/part.sql"]
    monkeypatch.setattr(executors, "_MAX_PACKAGE_BYTES", -1)
    with pytest.raises(Invalid, match=r"package .*ours: it has 0 MiB, .*; install it on the workers"):
        own_file("ours", scratch)
