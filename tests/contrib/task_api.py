"""The task API that an application of this Django uses: `django.tasks` in Django 6, else the package `django-tasks`."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django_tasks import TaskResultStatus, default_task_backend, task
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued, task_finished, task_started

    MODULE = ""
else:
    try:
        from django.tasks import TaskResultStatus, default_task_backend, task
        from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
        from django.tasks.signals import task_enqueued, task_finished, task_started

        MODULE = "django.tasks"
    except ModuleNotFoundError:
        from django_tasks import TaskResultStatus, default_task_backend, task
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
        from django_tasks.signals import task_enqueued, task_finished, task_started

        MODULE = "django_tasks"

APPS: Final = ["django_tasks"] if MODULE == "django_tasks" else []
"""What a project adds to INSTALLED_APPS for it."""

__all__ = [
    "APPS",
    "MODULE",
    "InvalidTask",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "default_task_backend",
    "task",
    "task_enqueued",
    "task_finished",
    "task_started",
]
