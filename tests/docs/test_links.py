"""Links between pages lead to a file and, where they name one, to a heading; so do the pages that sources name."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
PAGES = [ROOT / name for name in LISTED if name.endswith(".md") and (ROOT / name).exists()]
SOURCES = [
    ROOT / name for name in LISTED if name.endswith((".py", ".yml", ".yaml", ".toml", ".md", "Makefile", ".html"))
]
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?(?:\s[^)]*)?\)")


def anchors(page: Path) -> set[str]:
    """The ids that the site gives to the headings of a page."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).encode("ascii", "ignore").decode()
        anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        again = sum(anchor == re.sub(r"_\d+$", "", each) for each in found)
        found.add(f"{anchor}_{again}" if again else anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = _CODE.sub("", page.read_text())
    for target, anchor in _LINK.findall(prose):
        if "://" in target or target.startswith("mailto:"):
            continue
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and not anchor.startswith("only-"):
            assert anchor in anchors(file), f"{page.name} links to {target}#{anchor}"


def test_the_pages_that_sources_name_are_there() -> None:
    named = 0
    for file in SOURCES:
        for page, anchor in re.findall(
            r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", file.read_text() if file.exists() else ""
        ):
            named += 1
            assert (ROOT / page).exists(), f"{file.relative_to(ROOT)} names {page}"
            assert not anchor or anchor in anchors(ROOT / page), f"{file.relative_to(ROOT)} names {page}#{anchor}"
    assert named > 100


def test_every_example_is_linked_from_a_page() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    examples = sorted(file.name for file in (ROOT / "docs" / "examples").iterdir() if file.is_file())
    assert len(examples) > 10
    assert [name for name in examples if f"(../examples/{name})" not in pages] == []
