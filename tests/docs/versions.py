"""Lists the versions of the site for its menu; `make docs VERSION=0.2` calls it after the build.

The theme reads versions.json beside the folders of the versions; the newest one is what index.html leads to.
"""

import json
import re
import sys
from pathlib import Path


def versions(site: Path) -> list[str]:
    """The folders that are versions, newest first."""
    found = [folder.name for folder in site.iterdir() if re.fullmatch(r"\d+(\.\d+)*", folder.name)]
    return sorted(found, key=lambda name: [int(part) for part in name.split(".")], reverse=True)


def write_menu(site: Path) -> list[str]:
    found = versions(site)
    entries = [
        {"version": name, "title": name, "aliases": ["latest"] if number == 0 else []}
        for number, name in enumerate(found)
    ]
    (site / "versions.json").write_text(json.dumps(entries, indent=1) + "\n")
    if found:
        (site / "index.html").write_text(f'<meta http-equiv="refresh" content="0; url={found[0]}/index.html">\n')
    return found


if __name__ == "__main__":
    sys.stdout.write(f"versions: {', '.join(write_menu(Path(sys.argv[1])))}\n")
