"""`forebay.contrib.django.worker:fb`: the application of the project in DJANGO_SETTINGS_MODULE, for workers.

`manage.py forebay worker` names it. Processes that a worker starts import it again, so it sets Django up.
"""

import django
from django.apps import apps

from forebay.contrib.django.project import app

if not apps.ready:
    django.setup()

fb = app()
