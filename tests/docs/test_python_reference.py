"""The Python reference is complete: what guides import and what packages make public is on the page, and each public
method says what it does."""

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from forebay import pytest_plugin

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "python.md").read_text()
ERRORS = (DOCS / "reference" / "errors.md").read_text()

PUBLIC = (
    *("forebay", "forebay.testing", "forebay.spark", "forebay.webhooks"),
    *(f"forebay.contrib.{name}" for name in ("asgi", "wsgi", "sqlalchemy", "django")),
)


class Entry(NamedTuple):
    """One `:::` of the page. `members`: the only ones shown, if any are named; `hidden`: patterns of those left out."""

    path: str
    members: list[str]
    hidden: list[str]

    def object(self) -> Any:
        return load(self.path)

    def shown(self) -> list[str]:
        """The public members of the object that are on the page."""
        found = self.object()
        if isinstance(found, ModuleType):
            own = [name for name, value in vars(found).items() if getattr(value, "__module__", "") == self.path]
        else:
            bases = [base for base in getattr(found, "__mro__", ()) if base.__module__.startswith("forebay.")]
            own = sorted({name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ()))})
        names = self.members or [name for name in own if not name.startswith("_")]
        return [name for name in names if not any(re.search(pattern, name) for pattern in self.hidden)]


def load(path: str) -> Any:
    try:
        return import_module(path)
    except ModuleNotFoundError:
        parent, _, name = path.rpartition(".")
        return getattr(import_module(parent), name)


def entries() -> list[Entry]:
    found = re.findall(r"^::: (\S+)\n((?:    .*\n)*)", PAGE, re.MULTILINE)
    return [
        Entry(
            path,
            re.findall(r"\w+", "".join(re.findall(r"members: \[(.*?)\]", options))),
            re.findall(r'"!(.*?)"', options),
        )
        for path, options in found
    ]


def documented() -> set[str]:
    """Every name that has an entry, alone or as a member of a module."""
    names = {entry.path.rpartition(".")[2] for entry in entries()}
    for entry in entries():
        if isinstance(entry.object(), ModuleType):
            names |= set(entry.shown())
    return names | set(re.findall(r"\| `(\w+)` \|", ERRORS)) | {"NAMED", "ForebayError", "app"}


def imported(page: Path) -> Iterator[tuple[str, str]]:
    """Modules of forebay, and the names that the Python of a page imports from them."""
    for block in re.findall(r"^```py(?:thon)?(?: [^\n]*)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "forebay":
                yield from ((str(node.module), name.name) for name in node.names)


def test_what_pages_import_is_in_the_reference() -> None:
    known = documented()
    assert "`NAMED`" in PAGE
    assert "`forebay.contrib.django.app`" in PAGE
    assert "`forebay.ForebayError`" in ERRORS
    pages = [*(DOCS / "start").glob("*.md"), *(DOCS / "guides").glob("*.md")]
    used = {(page.name, module, name) for page in pages for module, name in imported(page)}
    assert {each for each in used if each[2] not in known} == set()
    unnamed = {each for each in used if each[1] != "forebay" and f"`{each[1]}" not in PAGE and each[2] not in ERRORS}
    assert unnamed == set(), "the page does not say from which module these come"
    called = {path for page in pages for path in re.findall(r"`(forebay(?:\.\w+){2,})\(", page.read_text())}
    assert called
    assert called - {entry.path for entry in entries()} == set()


def public(module: ModuleType) -> list[str]:
    """What `__all__` lists, else the functions and classes that the module defines."""
    defined = (value for value in vars(module).values() if inspect.isclass(value) or inspect.isfunction(value))
    own = [value.__name__ for value in defined if value.__module__ == module.__name__]
    return getattr(module, "__all__", [name for name in own if not name.startswith("_")])


@pytest.mark.parametrize("name", PUBLIC)
def test_what_a_package_makes_public_is_in_the_reference(name: str) -> None:
    found = public(import_module(name))
    assert found
    assert sorted(set(found) - documented()) == []
    assert name == "forebay" or f"`{name}" in PAGE


def test_every_fixture_and_option_of_the_plugin_is_in_the_reference() -> None:
    source = inspect.getsource(pytest_plugin)
    fixtures = re.findall(r"^@pytest\.fixture\ndef (\w+)", source, re.MULTILINE)
    options = re.findall(r'addoption\("(--[a-z-]+)"', source)
    assert len(fixtures) == 4
    assert len(options) == 2
    assert sorted(set(fixtures) - documented()) == []
    assert [option for option in options if f"`{option} N`" not in PAGE] == []


def described() -> Iterator[tuple[str, str]]:
    """Every class, method and function that the page shows, with its docstring."""
    for entry in entries():
        found = entry.object()
        shown = [(entry.path, found)]
        if inspect.isclass(found) or isinstance(found, ModuleType):
            shown += [(f"{entry.path}.{name}", getattr(found, name)) for name in entry.shown() if hasattr(found, name)]
        for path, each in shown:
            if inspect.isclass(each) or inspect.isroutine(each):
                yield path, inspect.getdoc(each) or ""


def test_each_method_and_function_of_the_reference_has_a_docstring() -> None:
    texts = dict(described())
    assert len(texts) > 200
    assert [path for path, text in texts.items() if not text] == []
