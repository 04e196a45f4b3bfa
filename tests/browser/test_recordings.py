"""Recordings of the terminal are drawn from what the program really prints."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.browser.recordings import PAGE, RECORDINGS, Line, Scene, drawing, played, shown, spans
from tests.docs.console import blocks, commands, missing

SHOWN = "sqlite:///jobs.db: schema 1 of 1, durable"
IMAGES = Path(__file__).parents[2] / "docs" / "img"


def test_a_command_is_played_on_a_terminal_and_drawn(tmp_path: Path) -> None:
    lines = played(Scene("forebay migrate", 60), tmp_path)
    assert [line.text for line in lines] == [SHOWN]
    root = ElementTree.fromstring(drawing(lines))
    assert [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")] == [SHOWN]


def test_colours_become_classes_and_text_is_escaped() -> None:
    assert spans("a \x1b[31m<b>\x1b[0m c") == 'a <tspan class="red">&lt;b&gt;</tspan> c'
    assert "animation-delay: 1.50s" in drawing([Line(1.5, "x")])


def lines_of(picture: Path) -> list[str]:
    """The text of a recording."""
    rows = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(row.itertext()) for row in rows]


@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("scheme", ["", "-dark"])
def test_a_recording_shows_what_its_page_shows(name: str, scheme: str) -> None:
    """Every line below a command of the page is in the recording of that command: renew it with `make screenshots`."""
    on_page: dict[str, list[str]] = {}
    typed = [block.text for block in blocks(PAGE) if block.language == "console" and block.text.startswith("$ ")]
    for command in (command for text in typed for command in commands(text)):
        on_page.setdefault(command.line, command.shown)
    recorded = lines_of(IMAGES / f"{name}{scheme}.svg")
    begins = [recorded.index(f"$ {scene.command}") for scene in RECORDINGS[name]]
    assert begins[0] == 0
    for scene, begin, end in zip(RECORDINGS[name], begins, [*begins[1:], len(recorded)], strict=True):
        came = "\n".join(recorded[begin + 1 : end])
        assert on_page[scene.command]
        assert missing(on_page[scene.command], came) is None
        assert "token=" not in came.replace("token=…", "")


def test_what_differs_between_recordings_is_left_out() -> None:
    printed = "dashboard  http://127.0.0.1:40123/ui/login?token=abc-7"
    assert shown("url  http://127.0.0.1:40123", "/tmp/forebay-x") == "url  http://127.0.0.1:8321"
    assert shown(printed, "/tmp/forebay-x") == "dashboard  http://127.0.0.1:8321/ui/login?token=…"
    assert shown('File "/tmp/forebay-x/app.py", line 8', "/tmp/forebay-x") == 'File "/srv/mail/app.py", line 8'
