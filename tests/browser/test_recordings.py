"""Recordings of the terminal are drawn from what the program really prints."""

from pathlib import Path
from xml.etree import ElementTree

from tests.browser.recordings import RECORDINGS, Line, Scene, drawing, played, spans

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


def test_every_recording_is_among_the_images() -> None:
    for name, scenes in RECORDINGS.items():
        shown = (IMAGES / f"{name}.svg").read_text()
        assert all(f"$ {scene.command}" in shown for scene in scenes)
        assert "http" not in shown.replace("http://www.w3.org/2000/svg", "")
