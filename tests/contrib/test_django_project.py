"""The project around the tasks: system checks, the admin, `manage.py forebay` in processes of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import pytest
from django.contrib.auth.models import Permission, User
from django.core import checks
from django.core.management import call_command
from django.test import Client, override_settings

from forebay import QueueSpec
from forebay.contrib.django import app
from forebay.contrib.django.config import config, url_of
from forebay.contrib.django.management.commands.forebay import TARGET, arguments, project_code
from forebay.contrib.django.project import specs
from forebay.core.errors import Invalid
from forebay.core.policy import Fifo, Priority
from tests.contrib.task_api import APPS, MODULE, default_task_backend
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
BACKEND = "forebay.contrib.django.ForebayBackend"


def problems() -> list[str]:
    return [f"{found.id}: {found.msg}" for found in checks.run_checks() if (found.id or "").startswith("forebay")]


@pytest.mark.usefixtures("project")
def test_a_sound_project_has_no_findings() -> None:
    assert problems() == []
    call_command("makemigrations", "forebay", check_changes=True, dry_run=True, verbosity=0)


@pytest.mark.parametrize(
    ("setting", "finding"),
    [
        (["URL"], "forebay.E010: FOREBAY: it is a list; write a dict"),
        ({"URI": "redis://"}, "forebay.E010: FOREBAY: unknown: URI"),
        ({"URL": 5}, "forebay.E010: FOREBAY['URL']: int is not a string"),
        ({"URL": "mysql://localhost"}, "forebay.E010: FOREBAY['URL']: 'mysql' is not a scheme of a store"),
        ({"DATABASE": "other"}, "forebay.E010: FOREBAY['DATABASE']: 'other' is not in DATABASES; use default"),
        ({"QUEUES": ["mail"]}, "forebay.E010: FOREBAY['QUEUES']: it is not a list of such values"),
        ({"TASK_MODULES": "tasks"}, "forebay.E010: FOREBAY['TASK_MODULES']: it is not a list of such values"),
        ({"BLOBS": 5}, "forebay.E010: FOREBAY['BLOBS']: int is not a string"),
        ({"BLOBS": "nowhere://x"}, "forebay.E010: blobs: nowhere: Protocol not known"),
        ({"URL": "memory://"}, "forebay.E011: FOREBAY['URL']: a worker cannot open a store in memory"),
    ],
)
def test_a_wrong_setting_is_an_error(setting: Any, finding: str) -> None:
    with override_settings(FOREBAY=setting):
        (found,) = problems()
        assert found.startswith(finding)


@pytest.mark.parametrize(
    ("options", "finding"),
    [
        ({"retries": 3}, "forebay.E002: TASKS['default']['OPTIONS'] has unknown options: retries"),
        ({"max_attempts": 0}, "forebay.E003: TASKS['default']: max_attempts: 0 is not"),
        ({"timeout": "soon"}, "forebay.E003: TASKS['default']: "),
        ({"result_ttl": 0}, "forebay.E003: TASKS['default']: result_ttl"),
    ],
)
@pytest.mark.usefixtures("project")
def test_a_wrong_option_is_an_error(options: dict[str, Any], finding: str) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}}):
        (found,) = problems()
        assert found.startswith(finding)


def test_the_backend_needs_its_app() -> None:
    with override_settings(INSTALLED_APPS=APPS):
        (found,) = default_task_backend.check()
    assert (found.id, found.hint) == ("forebay.E001", "add 'forebay.contrib.django' to INSTALLED_APPS")


def test_queues_of_tasks_go_by_priority_unless_they_are_declared() -> None:
    with override_settings(FOREBAY={"URL": "memory://", "QUEUES": [QueueSpec(name="mail")]}):
        assert {spec.name: spec.selection for spec in specs()} == {"default": Priority(), "mail": Fifo()}
        assert {spec.name for spec in app().store.specs()} >= {"default", "mail"}


def test_without_a_task_api_the_error_names_the_package_to_install(tmp_path: Path) -> None:
    program = f"import sys; sys.modules['django_tasks'] = None; import {BACKEND.rpartition('.')[0]}"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if MODULE == "django.tasks":
        assert (ran.returncode, ran.stderr) == (0, "")
        return
    found = f"ImproperlyConfigured: Django {django.__version__} has no task API of its own; pip install django-tasks"
    assert ran.returncode == 1
    assert found in ran.stderr.splitlines()[-1]


def test_another_backend_of_tasks_does_not_matter() -> None:
    ours = {"BACKEND": BACKEND, "QUEUES": ["mail"]}
    with override_settings(TASKS={"default": ours, "other": {"BACKEND": "does.not.exist", "QUEUES": ["x"]}}):
        assert [spec.name for spec in specs()] == ["mail"]


@pytest.mark.parametrize(
    ("database", "url"),
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "a b", "USER": "ann", "PASSWORD": "p@:/"}, "postgresql://ann:p%40%3A%2F@/a%20b"),
        ({"NAME": "shop", "HOST": "db", "PORT": "5433", "USER": "ann"}, "postgresql://ann@db:5433/shop"),
        ({"NAME": "shop", "HOST": "a,b", "PORT": "5433"}, "postgresql://a:5433,b:5433/shop"),
        ({"NAME": "shop", "HOST": "a,b", "PORT": "5432,5433"}, "postgresql://a:5432,b:5433/shop"),
        ({"NAME": "shop", "HOST": "/run/pg", "PORT": 5433}, "postgresql:///shop?host=%2Frun%2Fpg&port=5433"),
        (
            {"NAME": "shop", "HOST": "db", "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql://db/shop?sslmode=require",
        ),
    ],
)
def test_the_store_is_the_database_of_the_project(database: dict[str, Any], url: str) -> None:
    assert url_of(database) == url


@pytest.mark.usefixtures("postgres_project")
def test_another_database_is_not_joined() -> None:
    own = config()
    assert own.joins
    assert app().url == own.url
    with override_settings(FOREBAY={"URL": own.url.replace(own.url.rpartition("/")[2], "other")}):
        assert not config().joins
    with override_settings(FOREBAY={"URL": "sqlite:///jobs.db"}):
        assert not config().joins


@pytest.mark.usefixtures("project")
def test_the_admin_links_to_the_dashboard_for_users_with_the_right() -> None:
    staff = User.objects.create_user("ann", password="x", is_staff=True)
    client = Client()
    client.force_login(staff)
    with override_settings(FOREBAY={**vars_of(), "DASHBOARD_URL": "https://jobs.example/ui/"}):
        assert b"/admin/forebay/dashboard/" not in client.get("/admin/").content
        assert client.get("/admin/forebay/dashboard/").status_code == 403
        staff.user_permissions.add(Permission.objects.get(codename="view_dashboard"))
        assert b"/admin/forebay/dashboard/" in client.get("/admin/").content
        answer = client.get("/admin/forebay/dashboard/")
        assert (answer.status_code, answer["Location"]) == (302, "https://jobs.example/ui/")
        assert client.get("/admin/forebay/dashboard/add/").status_code == 403
    assert b"/admin/forebay/dashboard/" not in client.get("/admin/").content


def vars_of() -> dict[str, Any]:
    from django.conf import settings

    return dict(settings.FOREBAY)


def test_commands_get_the_app_its_queues_and_its_code() -> None:
    assert arguments(["worker", "--metrics", "9464"]) == [
        "worker",
        TARGET,
        "--queues",
        "default,mail",
        "--metrics",
        "9464",
    ]
    assert arguments(["worker", "--queues=mail"]) == ["worker", TARGET, "--queues=mail"]
    assert arguments(["serve"]) == ["serve", "--app", TARGET]
    assert arguments(["ls", "--state", "dead"]) == ["ls", "--state", "dead"]
    assert arguments([]) == ["--help"]
    watched = arguments(["dev", "--no-server"])
    assert watched[:4] == ["dev", TARGET, "--queues", "default,mail"]
    assert str(ROOT / "tests/contrib/shop") in watched
    assert not any("site-packages" in str(home) for home in project_code())


SETTINGS = f"""
import os
SECRET_KEY = "only for tests"
INSTALLED_APPS = {[*APPS, "forebay.contrib.django", "store"]}
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}}}
TASKS = {{"default": {{"BACKEND": "forebay.contrib.django.ForebayBackend"}}}}
FOREBAY = {{"URL": os.environ.get("TEST_STORE", "sqlite:///jobs.db")}}
"""
MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
TASKS = f"""
from pathlib import Path
from {MODULE} import task

@task()
def greet(name):
    return "hello " + name
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    for name, text in {
        "manage.py": MANAGE,
        "site_settings.py": SETTINGS,
        "store/__init__.py": "",
        "store/tasks.py": TASKS,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("FOREBAY_URL", "DJANGO_SETTINGS_MODULE")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", **more}


def manage(site: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *words]
    return subprocess.run(
        command, cwd=site, env=environment(**more), capture_output=True, text=True, timeout=120, check=False
    )


@contextmanager
def managed(site: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with (site / "log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, str(site / "manage.py"), *words], cwd=site, env=environment(), stdout=log, stderr=log
        )
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
            code = running.wait(30)
    assert code == 0, (site / "log").read_text()


def enqueued(site: Path) -> str:
    """The id of a new job."""
    code = "from store.tasks import greet; print(greet.enqueue('Ann').id)"
    ran = manage(site, "shell", "-c", code)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()[-1]


def shown(site: Path, job_id: str) -> str:
    return manage(site, "forebay", "show", job_id).stdout


@pytest.mark.timeout(240)
@pytest.mark.parametrize("words", [("worker",), ("worker", "--processes", "1")], ids=" ".join)
def test_a_worker_of_manage_py_runs_the_tasks(site: Path, words: tuple[str, ...]) -> None:
    ran = manage(site, "forebay", "migrate")
    assert (ran.returncode, ran.stdout.startswith("sqlite:///jobs.db: schema")) == (0, True), ran.stderr
    job_id = enqueued(site)
    assert "ready" in shown(site, job_id)
    with managed(site, "forebay", *words):
        eventually(lambda: "hello Ann" in shown(site, job_id))


@pytest.mark.timeout(240)
def test_dev_restarts_the_worker_when_a_task_changes(site: Path) -> None:
    with managed(site, "forebay", "dev", "--no-server"):
        first = enqueued(site)
        eventually(lambda: "hello Ann" in shown(site, first))
        (site / "store/tasks.py").write_text(TASKS.replace("hello", "welcome back,"))
        eventually(lambda: "tasks.py changed; restarting" in (site / "log").read_text())
        second = enqueued(site)
        eventually(lambda: "welcome back, Ann" in shown(site, second))


def test_a_wrong_setting_stops_a_command_before_it_runs(site: Path) -> None:
    ran = manage(site, "forebay", "worker", TEST_STORE="mysql://localhost")
    assert ran.returncode == 1
    assert "(forebay.E010) FOREBAY['URL']: 'mysql' is not a scheme of a store" in ran.stderr


def test_settings_may_be_named_on_the_command_line(site: Path) -> None:
    ran = manage(site, "forebay", "ls", "--settings=site_settings")
    assert (ran.returncode, "no store at sqlite:///jobs.db" in ran.stderr) == (3, True), ran.stderr


def test_a_bad_setting_is_invalid() -> None:
    with override_settings(FOREBAY=None), pytest.raises(Invalid, match="NoneType"):
        config()
