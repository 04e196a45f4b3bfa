"""The page of errors has every error class, every kind of error that a job carries and every problem over HTTP."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "forebay"
CLASSES, KINDS, PROBLEMS = (ROOT / "docs" / "reference" / "errors.md").read_text().split("\n## ")


def sources(folder: Path) -> str:
    return "\n".join(file.read_text() for file in sorted(folder.rglob("*.py")))


def rows(part: str) -> dict[str, list[str]]:
    """What the first column of each row names, and its other columns."""
    found = re.findall(r"^\| (`.*?) \| (.*) \|$", part, re.MULTILINE)
    return {name: rest.split(" | ") for names, rest in found for name in re.findall(r"`([\w.-]+)`", names)}


def test_each_error_class_has_a_cause_and_a_remedy() -> None:
    defined = re.findall(r"^class (\w+)\(([^)]+)\)", sources(SOURCES), re.MULTILINE)
    found = {"ForebayError"}
    while more := {name for name, bases in defined if set(re.findall(r"\w+", bases)) & found} - found:
        found |= more
    errors = rows(CLASSES)
    assert len(found) > 25
    assert found - {"ForebayError"} == set(errors)
    assert all(cause and remedy for cause, remedy in errors.values())


def test_each_kind_of_error_that_a_job_carries_has_its_row() -> None:
    assert set(re.findall(r'"(forebay\.[A-Z][a-z]\w+)"', sources(SOURCES))) == set(rows(KINDS))


def test_each_problem_over_http_has_its_row() -> None:
    text = sources(SOURCES / "serve")
    found = set(re.findall(r'\b(?:Problem\(\s*\d+,|_too_many\(|\w+, \d{3},)\s*"([a-z-]+)"', text))
    assert len(found) > 25
    assert found | {"method-not-allowed"} == set(rows(PROBLEMS))
