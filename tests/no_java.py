"""A machine without Java: all of its programs but that one."""

import os
from pathlib import Path


def without_java(directory: Path) -> dict[str, str]:
    """The environment of a process there, with a cache of its own."""
    tools = directory / "bin"
    tools.mkdir()
    for tool in {tool.name: tool for folder in ("/bin", "/usr/bin") for tool in Path(folder).iterdir()}.values():
        if tool.name != "java":
            (tools / tool.name).symlink_to(tool)
    bare = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return bare | {"PATH": str(tools), "XDG_CACHE_HOME": str(directory / "cache")}
