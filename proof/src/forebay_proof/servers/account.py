"""The account of a server: Postgres and PgBouncer refuse root, and build machines and containers often are root.

Promise. `settle` returns an account under which the program starts and can write into the directory. An ordinary user
runs it as itself. Root tries, in this order, and takes what works:

    1. a user namespace in which root is called nobody: files stay root's, and a folder with mode 0700 is no obstacle
    2. the user nobody, where namespaces are forbidden (most containers)
    3. the user nobody with a copy of the program, where nobody may not read it (a checkout below root's own folder)

It tries by doing, since kernels, containers and mount options forbid these in more ways than can be asked for. When
none works, `ServerUnavailable` lists the error of each.
"""

import os
import pwd
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from forebay_proof.servers.process import PATIENCE, ServerFailed, ServerUnavailable, ServerWatchdog, environment, tail

_NAMESPACE: Final = ("unshare", "--user", "--map-user=65534", "--")
_TRIAL: Final = '[ "$(id -u)" != 0 ] && : > trial && rm trial && exec "$1" --version'


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the programs of a server are, and the folders to copy where nobody may not read them."""

    folder: Path
    trees: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """Programs, the way to start them, and what they call themselves."""

    name: str
    programs: Programs
    prefix: tuple[str, ...] = ()
    user: tuple[int, int] | None = None
    version: str = ""

    def command(self, program: str, *arguments: str | Path) -> list[str | Path]:
        return [*self.prefix, self.programs.folder / program, *arguments]

    def own(self, path: Path) -> None:
        """Make a file that we wrote readable for the server alone."""
        if self.user:
            os.chown(path, *self.user)
        path.chmod(0o600)

    def env(self) -> dict[str, str]:
        return environment(self.programs.libraries)


def settle(watchdog: ServerWatchdog, programs: Programs, program: str, way_out: str) -> Account:
    """The first account that can run `program` in the directory of `watchdog`, which is given to it."""
    output: list[str] = []
    for way in _ways(watchdog, programs):
        try:
            account = way()
            log = f"trial-{len(output)}.log"
            shell: list[str | Path] = [
                *account.prefix,
                "/bin/sh",
                "-c",
                _TRIAL,
                "sh",
                account.programs.folder / program,
            ]
            child = watchdog.run(shell, log, env=account.env(), user=account.user)
            if child.wait(PATIENCE) == 0:
                return replace(account, version=tail(child.log))
            output.append(f"{account.name}: {tail(child.log)}")
        except (OSError, ServerFailed) as error:
            output.append(str(error))
    tried = "\n".join(f"  {number}. {text}" for number, text in enumerate(output, 1))
    raise ServerUnavailable(
        f"{programs.folder / program} does not run here (it refuses root). Tried:\n{tried}\n"
        f"Run the tests as an ordinary user, or {way_out}."
    )


def _ways(watchdog: ServerWatchdog, programs: Programs) -> list[Callable[[], Account]]:
    if os.geteuid() != 0:
        return [lambda: Account("yourself", programs)]
    nobody = pwd.getpwnam("nobody")
    user = (nobody.pw_uid, nobody.pw_gid)
    ways: list[Callable[[], Account]] = [
        lambda: Account("a user namespace", programs, prefix=_NAMESPACE),
        lambda: _given_to(user, watchdog, Account("user nobody", programs, user=user)),
    ]
    if programs.trees:
        ways.append(
            lambda: _given_to(user, watchdog, Account("user nobody, copied", _copied(watchdog, programs), user=user))
        )
    return ways


def _given_to(user: tuple[int, int], watchdog: ServerWatchdog, account: Account) -> Account:
    for path in (watchdog.directory, *watchdog.directory.rglob("*")):
        os.chown(path, *user, follow_symlinks=False)
    return account


def _copied(watchdog: ServerWatchdog, programs: Programs) -> Programs:
    place = watchdog.directory / "programs"
    base = Path(os.path.commonpath([tree.parent for tree in programs.trees]))
    for tree in programs.trees:
        shutil.copytree(tree, place / tree.relative_to(base), symlinks=True, ignore=shutil.ignore_patterns("include"))
    moved = [place / path.relative_to(base) for path in (programs.folder, *programs.libraries)]
    return Programs(moved[0], libraries=tuple(moved[1:]))
