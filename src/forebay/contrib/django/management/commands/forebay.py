"""`manage.py forebay …`: the command line of Forebay on the store of this project.

    manage.py forebay worker --concurrency 16
    manage.py forebay dev
    manage.py forebay migrate
    manage.py forebay ls

`worker` serves the queues of TASKS, `dev` watches the code of the project's apps, and `serve` has its tasks. Every
command gets the store of the settings.
"""

import os
import sys
from argparse import REMAINDER, ArgumentParser
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.core.management.base import BaseCommand

from forebay.cli import main
from forebay.contrib.django.config import config
from forebay.contrib.django.project import queue_names

TARGET: Final = "forebay.contrib.django.worker:fb"


class Command(BaseCommand):
    help = "Run a command of Forebay on the store of this project: worker, dev, serve, migrate, ls, …"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("words", nargs=REMAINDER, metavar="COMMAND …", help="as of the command `forebay`")

    def handle(self, *_: Any, words: list[str], **__: Any) -> None:
        os.environ["FOREBAY_URL"] = config().url
        path = [sys.path[0], os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
        if code := main(arguments(_without_settings(words))):
            sys.exit(code)


def arguments(words: list[str]) -> list[str]:
    """The words for `forebay`: with the app, its queues and its code where the command takes them."""
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    queues = [] if any(word.startswith("--queues") for word in rest) else ["--queues", ",".join(queue_names())]
    match command:
        case "worker":
            return [command, TARGET, *queues, *rest]
        case "dev":
            watched = [word for home in project_code() for word in ("--watch", str(home))]
            return [command, TARGET, *queues, *watched, *rest]
        case "serve":
            return [command, "--app", TARGET, *rest]
        case _:
            return [command, *rest]


def project_code() -> list[Path]:
    """Directories of the project's own code: of its settings, and of apps that are not installed packages."""
    module = sys.modules.get(os.environ.get("DJANGO_SETTINGS_MODULE", ""))
    homes = [] if module is None or module.__file__ is None else [Path(module.__file__).parent]
    homes += [Path(each.path) for each in apps.get_app_configs() if not each.name.startswith(("django.", "forebay."))]
    own = [home.resolve() for home in homes if not {"site-packages", "dist-packages"} & set(home.parts)]
    return [home for home in dict.fromkeys(own) if not any(other in home.parents for other in own)]


def _without_settings(words: list[str]) -> list[str]:
    """`--settings` and `--pythonpath` are Django's, which has heeded them."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    return parser.parse_known_args(words)[1]
