"""The page of a notebook: its cells with their outputs, as the file has them. A test runs the notebook and compares."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

NOTEBOOK: Final = Path(__file__).parents[2] / "examples" / "read_the_lake.ipynb"


def page() -> str:
    """All cells below the title, which is the page's own."""
    _, *cells = json.loads(NOTEBOOK.read_text())["cells"]
    return "\n".join(part for cell in cells for part in _parts(cell))


def _parts(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield f"{source}\n"
        return
    yield f"```py\n{source}\n```\n"
    for output in cell["outputs"]:
        yield f"```text\n{''.join(output['data']['text/plain'])}\n```\n"
