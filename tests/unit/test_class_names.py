"""One name, one idea: no two classes or type aliases of the product and its proof have the same name.

Names that are private to a file are not searched for elsewhere, and may repeat. What is parallel is listed here.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORES = "src/forebay/store"

BY_STORE = frozenset(
    "BackendPart Control Health Intake JobRow Jobs KnownSpec LaneName Leases Ledger Logs Migration"
    " NotReplicated Observing Row Server Session SpecCache Topic UnitOfWork Waiting".split()
)
"""Parallel by store: the same part of each backend (`docs/internals/architecture.md`)."""

PAIRS = {
    "AdminActor": "API and pages",
    "AuditAnswer": "of the audit and of the lab, which reads it without Spark",
    "Command": "Django's name for a command, and ours",
    "Dashboard": "`contrib.asgi`, and the model by which Django lists it",
    "Job": "`core`, and the few fields of `forebay.queue`",
    "OperatorActor": "API and pages",
    "ViewerActor": "API and pages",
}


def declared(tree: ast.Module) -> Iterator[str]:
    """The public classes and type aliases of a module; type variables are of the file alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                of_type = ast.unparse(value)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if "TypeAlias" in ast.unparse(
                annotation
            ):
                of_type = ""
            case _:
                continue
        if name[0].isupper() and not name.isupper() and "TypeVar" not in of_type:
            yield name


def repeated(modules: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Path and source of each module; the paths of each name that means several things."""
    found = defaultdict(list)
    for path, source in modules:
        for name in declared(ast.parse(source)):
            if not name.startswith("_"):
                found[name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1 and not _may_repeat(name, paths)}


def _may_repeat(name: str, paths: list[str]) -> bool:
    if name in PAIRS:
        return len(paths) == 2
    rooms = Counter(str(Path(path).parent) for path in paths)
    return name in BY_STORE and max(rooms.values()) == 1 and all(path.startswith(STORES) for path in paths)


def test_a_name_means_one_thing() -> None:
    files = (path for top in ("src", "proof/src") for path in sorted((ROOT / top).rglob("*.py")))
    ours = ((str(path.relative_to(ROOT)), path.read_text()) for path in files if "django" not in path.parts)
    found = repeated(ours)
    assert not found, "\n" + "\n".join(f"{name}: {', '.join(paths)}" for name, paths in found.items())


def test_the_checker_bites() -> None:
    a, b = "src/forebay/a.py", "src/forebay/b.py"
    assert repeated([(a, "class Line: ..."), (b, "Line = tuple[int, str]")]) == {"Line": [a, b]}
    assert repeated([(a, "Line: TypeAlias = int"), (b, "class C:\n    class Line: ...")]) == {"Line": [a, b]}
    assert repeated([(a, "class Session: ..."), (f"{STORES}/redis/x.py", "class Session: ...")]) != {}
    assert repeated([(f"{STORES}/redis/{part}.py", "class Logs: ...") for part in "xy"]) != {}


def test_the_checker_lets_parallel_and_private_names_pass() -> None:
    stores = [(f"{STORES}/{name}/session.py", "class Session: ...") for name in ("redis", "sqlite")]
    private = [(f"src/forebay/{name}.py", "class _Line: ...\nT = TypeVar('T')") for name in "ab"]
    assert repeated([*stores, *private]) == {}
