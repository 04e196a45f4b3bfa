"""Tables that repeat the code or a recorded result: routes, metrics, figures. `make reference` writes them.

Each page holds its table between two markers; a test compares the two. The table of commands is written by
`forebay.cli.reference`.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from forebay.cli import reference as commands
from forebay.core import limits
from forebay.serve.app import create_app
from forebay.serve.metrics.families import DURATIONS, FLEET
from forebay.serve.metrics.gates import GATE_FIELDS, MAX_GATES
from forebay.store.open import open_store
from forebay_proof.evidence import recorded
from forebay_proof.evidence_parts import PARTS
from tests.docs import figures
from tests.unit import test_layers

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ROOT / "docs" / "reference"
BEGIN: Final = "<!-- generated: begin -->\n"
END: Final = "<!-- generated: end -->\n"
EVIDENCE: Final = ROOT / "docs" / "results" / "evidence"
_METRIC_SOURCES: Final = ("serve/metrics", "work")
_TYPES: Final = ("counter", "gauge", "histogram")


def routes() -> str:
    """Every route with its parameters, its body and its answers, as the OpenAPI document has them."""
    store = open_store("memory:")
    try:
        document = create_app(store).openapi()
    finally:
        store.close()
    parts = []
    for path, methods in sorted(document["paths"].items()):
        for method, about in methods.items():
            parts.append(_route(f"{method.upper()} {path}", about))
    parts.append("## Bodies\n")
    parts += [_model(*each) for each in sorted(document["components"]["schemas"].items())]
    return "\n".join(parts)


def _route(name: str, about: dict[str, Any]) -> str:
    text = about.get("description") or about.get("summary", "")
    lines = [f"## `{name}`\n", f"{text.strip()}\n"]
    rows = [
        f"| `{each['name']}` | {each['in']} | {_type(each['schema'])} | {'yes' if each.get('required') else 'no'} |"
        for each in about.get("parameters", ())
    ]
    if rows:
        lines.append("\n".join(["| parameter | in | type | required |", "|---|---|---|---|", *rows]) + "\n")
    for media, content in about.get("requestBody", {}).get("content", {}).items():
        lines.append(f"Body ({media}): {_type(content.get('schema', {}))}\n")
    responses = sorted(about.get("responses", {}).items())
    lines += [f"{status}: {', '.join(_answer(each)) or 'no body'}\n" for status, each in responses if status < "400"]
    errors = [status for status, _ in responses if status >= "400"]
    lines.append(f"Errors: {', '.join(errors)}\n")
    return "\n".join(lines)


def _model(name: str, schema: dict[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        f"| `{field}` | {_type(each)} | {'yes' if field in needed else 'no'} |"
        for field, each in schema.get("properties", {}).items()
    ]
    table = ["| field | type | required |", "|---|---|---|", *rows] if rows else [_type(schema)]
    return "\n".join([f"### `{name}`\n", *table]) + "\n"


def _answer(response: dict[str, Any]) -> Iterator[str]:
    for content in response.get("content", {}).values():
        yield _type(content.get("schema", {}))


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def metrics() -> str:
    """Every metric family with its type and its help text, as the sources declare them."""
    found = {name: ("counter", f"{text} From the ledger.") for name, text in FLEET.values()}
    found |= {f"forebay_gate_{field}": ("gauge", text) for field, text in GATE_FIELDS.items()}
    found |= {name: ("histogram", f"{text} From the ledger.") for name, _, text in DURATIONS.values()}
    for source in _METRIC_SOURCES:
        for file in sorted((ROOT / "src" / "forebay" / source).glob("*.py")):
            found |= dict(_declared(ast.parse(file.read_text())))
    rows = [f"| `{name}` | {kind} | {text} |" for name, (kind, text) in sorted(found.items())]
    return "\n".join(["| metric | type | meaning |", "|---|---|---|", *rows]) + "\n"


def _declared(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    """Calls such as gauge("forebay_…", "What it is.", …); the text may be a variable that was set before."""
    texts: dict[str, str] = {}
    for node in sorted(ast.walk(tree), key=lambda each: getattr(each, "lineno", 0)):
        match node:
            case ast.Assign(targets=[ast.Name(id=variable)], value=value):
                texts[variable] = _folded(value)
            case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(value=str(name)), text, *_]) if kind in _TYPES:
                yield name, (kind, texts[text.id] if isinstance(text, ast.Name) else _folded(text))


def _folded(node: ast.expr) -> str:
    """A text with the bounds that stand in it."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(_folded, values))
        case ast.FormattedValue(value=ast.Name(id="MAX_GATES")):
            return f"{MAX_GATES:,}"
        case ast.FormattedValue(value=ast.Name(id=name)) if hasattr(limits, name):
            return f"{getattr(limits, name):,}"
        case _:
            return ""


def evidence() -> str:
    """The parts of the evidence, with the time that their rounds take together."""
    rows = [
        f"| `{part.name}` | {part.title} | {part.goal:,} {part.unit} | {len(part.full)} | {part.hours:g} |"
        for part in PARTS
    ]
    rounds, hours = (sum(column) for column in zip(*((len(part.full), part.hours) for part in PARTS), strict=True))
    whole = f"| | all of it | | {rounds} | {hours:.0f} |"
    return "\n".join(["| part | what | goal | rounds | hours |", "|---|---|---|---|---|", *rows, whole]) + "\n"


def recorded_evidence() -> str:
    """What the recorded rounds did, at either scale, and the commits that they ran on."""
    rows, commands = [], []
    for scale in ("full", "quick"):
        known = recorded(EVIDENCE, scale)
        for part in PARTS:
            if (result := known.get(part.name)) is None:
                continue
            rounds, last = f"{len(result.rounds)} of {result.planned}", max(each.at for each in result.rounds)
            cells = (f"{result.count:,} {part.unit}", f"{part.goal:,}" if scale == "full" else "–", rounds)
            ran = (f"{result.seconds / 60:.0f}", " ".join(result.commits), f"{last[:16].replace('T', ' ')}")
            rows.append(f"| `{part.name}` | {scale} | {' | '.join((*cells, *ran, result.verdict(part.goal)))} |")
            commands.append(f"| `{part.name}` | {scale} | `{result.rounds[0].command}` |")
    if not rows:
        return "No round is recorded yet.\n"
    heads = "| part | scale | count | goal | rounds | minutes | commits | last (UTC) | result |"
    table = "\n".join([heads, "|---|---|---|---|---|---|---|---|---|", *rows])
    first = "\n".join(["| part | scale | command of its first round |", "|---|---|---|", *commands])
    return f"{table}\n\n{first}\n"


def layers() -> str:
    """The rows of tests/unit/test_layers.py, with names for the groups that many packages may import."""
    rows: dict[tuple[str, str], list[str]] = {}
    for room, allowed in test_layers.ROOMS.items():
        left, words = list(allowed), []
        for word, names in (("what stores share", test_layers.SHARED), ("the contract", test_layers.CONTRACT)):
            if set(names) <= set(left):
                words.append(word)
                left = [name for name in left if name not in names]
        whole = {"forebay.core": "core", "forebay.*": "every package"}
        words += [whole.get(name, f"`{name.removeprefix('forebay.')}`") for name in left if name != "forebay"]
        libraries = test_layers.OUTSIDE.get(room, set()) - sys.stdlib_module_names - {"msgspec", "google_crc32c"}
        columns = (", ".join(words) or "–", ", ".join(f"`{name}`" for name in sorted(libraries)) or "–")
        rows.setdefault(columns, []).append(f"`{room}`")
    table = [f"| {', '.join(rooms)} | {own} | {libraries} |" for (own, libraries), rooms in rows.items()]
    return "\n".join(["| package | may import of Forebay | libraries |", "|---|---|---|", *table]) + "\n"


TABLES: Final[dict[str, Callable[[], str]]] = {
    "http.md": routes,
    "metrics.md": metrics,
    "../internals/benchmarks.md": figures.deciding,
    "../internals/benchmarks.md#2": figures.table,
    "../compare.md": lambda: figures.pivot("recovery"),
    "../compare.md#2": figures.compared,
    "../guides/stores.md": lambda: figures.pivot("stores"),
    "../internals/testing.md": evidence,
    "../internals/evidence.md": recorded_evidence,
    "../../CONTRIBUTING.md": layers,
}
"""What writes a table of a page; `page.md#2` is the second one."""


def renewed(page: str, table: str, number: int = 1) -> str:
    """The page with another first table, or another one of its tables."""
    parts = page.split(BEGIN)
    parts[number] = table + END + parts[number].partition(END)[2]
    return BEGIN.join(parts)


def place_of(table: str) -> tuple[Path, int]:
    """The page and the number of a table there: `page.md`, or `page.md#2`."""
    file, _, number = table.partition("#")
    return PAGES / file, int(number or 1)


if __name__ == "__main__":
    for name, written in TABLES.items():
        file, number = place_of(name)
        file.write_text(renewed(file.read_text(), written(), number))
    page = ROOT / "docs" / "reference" / "cli.md"
    page.write_text(commands.renewed(page.read_text()))
