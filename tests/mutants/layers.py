"""The layers of the proof that could notice a mutant, by the room of its file, the quickest first.

A mutant names the tests that must kill it; those belong to one layer. `second_layers` gives the others that see the
same room: a guard that two layers hold does not hang on one test.

A layer counts if it judges behaviour. Tests that read the text of the sources (sizes, imports, this list) go red for a
change that breaks nothing, so layers leave them out; `with_a_comment` is such a change, and every layer has to pass it.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from tests.mutants.guards import Mutant


class Layer(NamedTuple):
    name: str
    tests: tuple[str, ...]


def _contract(*stores: str) -> Layer:
    return Layer("contract", ("tests/stores/test_conformance.py", "-k", " or ".join(f"{name}-" for name in stores)))


READ_TEXT: Final = tuple(
    f"tests/unit/test_{name}.py"
    for name in ("class_names", "evidence", "layers", "literals", "mutants", "sizes", "statements")
)
_MODEL: Final = Layer("model", ("tests/stores/test_model.py",))
_SIMULATION: Final = Layer("sim", ("tests/sim",))
_UNIT: Final = Layer("unit", ("tests/unit", *(f"--ignore={file}" for file in READ_TEXT)))

ROOMS: Final = (
    ("src/forebay/store/memory/*", (_contract("memory", "journaled"), _MODEL, _UNIT, _SIMULATION)),
    *(
        (
            f"src/forebay/store/{store}/*",
            (_contract(store), Layer("model", (f"tests/stores/test_{store}_model.py",)), _UNIT),
        )
        for store in ("sqlite", "postgres", "redis")
    ),
    (
        "src/forebay/store/cells/*",
        (_contract("two_cells", "one_cell"), Layer("model", ("tests/stores/test_cells_model.py",))),
    ),
    ("src/forebay/engine/*", (_contract("memory"), _MODEL, _UNIT, _SIMULATION)),
    ("src/forebay/core/*", (_UNIT, _contract("memory"), _MODEL, _SIMULATION)),
    ("src/forebay/work/*", (_UNIT, _SIMULATION, Layer("process", ("tests/process/test_worker.py",)))),
    ("src/forebay/serve/*", (Layer("serve", ("tests/serve",)), Layer("browser", ("tests/browser",)), _UNIT)),
    ("src/forebay/spark/*", (Layer("spark", ("tests/spark",)), _UNIT)),
    ("*", (_UNIT, _SIMULATION, _contract("memory"))),
)
"""The first pattern that a file matches decides."""


def layer_of(tests: tuple[str, ...]) -> str:
    """The layer of the tests that a mutant names."""
    file = tests[0].partition("::")[0]
    if file.endswith("test_conformance.py"):
        return "contract"
    return "model" if file.endswith("_model.py") else file.split("/")[1]


def second_layers(mutant: Mutant) -> list[Layer]:
    """Those besides its own."""
    layers = next(layers for pattern, layers in ROOMS if fnmatchcase(mutant.file, pattern))
    return [layer for layer in layers if layer.name != layer_of(mutant.tests)]


def with_a_comment(mutant: Mutant, source: str) -> Mutant:
    """A change without effect in the file of a mutant of one line: what it replaces stands there once more."""
    return replace(mutant, name=f"no change: {mutant.name}", old=source, new=f"{source}\n# {mutant.old}\n")
