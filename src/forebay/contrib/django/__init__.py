"""Forebay as the backend of Django's tasks.

    INSTALLED_APPS = [..., "forebay.contrib.django"]
    TASKS = {"default": {"BACKEND": "forebay.contrib.django.ForebayBackend"}}

`manage.py forebay worker` runs the tasks. They are tasks of `django.tasks` with Django 6, and of the package
`django-tasks` with Django 5.2. See docs/guides/django.md.
"""

from forebay.contrib.django.backend import ForebayBackend
from forebay.contrib.django.project import app
from forebay.contrib.django.task import ForebayTask, ForebayTaskContext

__all__ = ["ForebayBackend", "ForebayTask", "ForebayTaskContext", "app"]
