"""The task API of this Django: its own (`django.tasks`, Django 6) or that of the package `django-tasks`."""

from typing import TYPE_CHECKING, Any, TypeAlias

import django
from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    AnyTask: TypeAlias = Task[Any, Any]
    AnyResult: TypeAlias = TaskResult[Any]
else:
    try:
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    except ModuleNotFoundError:
        try:
            from django_tasks import exceptions
        except ModuleNotFoundError as error:
            reason = f"Django {django.__version__} has no task API of its own"
            remedy = "pip install django-tasks, and add 'django_tasks' to INSTALLED_APPS, or use Django 6"
            raise ImproperlyConfigured(f"{reason}; {remedy}") from error
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json

        # Renamed after 0.12, as in Django.
        InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError

    # Those of Django have no parameters.
    AnyTask, AnyResult = Task, TaskResult

__all__ = [
    "AnyResult",
    "AnyTask",
    "BaseTaskBackend",
    "InvalidTask",
    "TaskContext",
    "TaskError",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_enqueued",
    "task_finished",
    "task_started",
]
