"""The project of the guide runs as it stands, and on Django 6 with the two changes that the guide names."""

from pathlib import Path

from tests.contrib.task_api import MODULE
from tests.docs.console import blocks, terminals

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "django.md"
ON_DJANGO_6 = {"from django_tasks import task": "from django.tasks import task", '"django_tasks", ': ""}


def test_the_project_of_the_guide_runs(tmp_path: Path) -> None:
    text = GUIDE.read_text()
    assert all(text.count(words) for words in ON_DJANGO_6)
    with terminals(tmp_path, ON_DJANGO_6 if MODULE == "django.tasks" else {}) as opened:
        for block in blocks(GUIDE):
            opened.run(block)
