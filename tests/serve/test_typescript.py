"""The TypeScript client: generated from the document of a real server, compiled strictly, and run by node."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from forebay.core.instant import hours
from forebay.core.policy import KeepFor
from forebay.core.spec import QueueSpec
from forebay.serve.actor import Role
from forebay.store.protocol import Store
from tests.docs.console import blocks
from tests.serve.site import Serving

CLIENT: Final = Path(__file__).parents[2] / "clients" / "typescript"
PAGE: Final = CLIENT.parents[1] / "docs" / "guides" / "typescript.md"
INSTALLED: Final = Path(sys.prefix, "typescript", "node_modules")


@pytest.mark.nightly
def test_the_client_is_generated_compiled_and_used(store: Store, serve_on: Serving, tmp_path: Path) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None or not (INSTALLED / "openapi-fetch").exists():
        pytest.skip(f"no node, or nothing in {INSTALLED}: run `make typescript`, which needs npm")
    store.put_spec(QueueSpec(name="mail", retention=KeepFor(hours(1))))
    site = serve_on(store)
    tree = tmp_path / "client"
    shutil.copytree(CLIENT, tree, ignore=shutil.ignore_patterns("node_modules", "dist", "schema.ts", "openapi.json"))
    (tree / "node_modules").symlink_to(INSTALLED)
    (page,) = [block.text for block in blocks(PAGE) if block.language == "ts"]
    (tree / "src" / "page.ts").write_text(page.replace('"forebay-client"', '"./index.js"'))
    document = site.client(Role.VIEWER).get("/openapi.json").json()
    (tree / "openapi.json").write_text(json.dumps(document))
    built = subprocess.run([npm, "run", "--silent", "build"], cwd=tree, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    command = [node, "dist/example.js", site.url, site.key(Role.PRODUCER, Role.WORKER, Role.VIEWER)]
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    used = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert used.returncode == 0, used.stdout + used.stderr
    assert used.stdout == "done: Hello, Ada\n"


def test_the_lock_pins_every_package_and_names_no_registry() -> None:
    packages = json.loads((CLIENT / "package-lock.json").read_text())["packages"]
    assert {
        "node_modules/openapi-fetch",
        "node_modules/openapi-typescript",
        "node_modules/typescript",
    } <= packages.keys()
    for name, package in packages.items():
        if name:
            assert package["integrity"].startswith("sha512-"), name
            assert "resolved" not in package, name
