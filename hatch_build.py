"""The readme of the package: README.md without its picture and its links to other files, which a package index has not.

`make release` checks that none is left.
"""

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE: Final = re.compile(r"<picture>.*?</picture>\n\n", re.DOTALL)
_RELATIVE_LINK: Final = re.compile(r"\[([^\]]*)\]\((?!\w+://|#)[^)]*\)")
_LIST_OF_PAGES: Final = "## Where to go\n"
_END: Final = "The source archive has the guides, the reference and the changelog; `make docs` builds them as a site.\n"


def package_readme(text: str) -> str:
    head = _PICTURE.sub("", text).partition(_LIST_OF_PAGES)[0]
    return _RELATIVE_LINK.sub(r"\1", head) + _END


class ReadmeHook(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": package_readme(text)}
