"""The pictures of the docs show the pages that the dashboard has."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from forebay.serve.actor import Role
from tests.browser.chrome import log_in, opened
from tests.browser.screens import LABELS, SHOTS, labels, open_shot
from tests.serve.site import Site

IMAGES = Path(__file__).parents[2] / "docs" / "img"


@pytest.mark.parametrize(("name", "path"), SHOTS)
def test_a_picture_has_the_labels_of_its_page(name: str, path: str, shop: Site, chrome: Browser) -> None:
    with opened(chrome) as (page, _):
        log_in(page, shop, shop.key(Role.ADMIN))
        open_shot(page, shop, path)
        pictured = json.loads((IMAGES / LABELS).read_text())[name]
        assert labels(page) == pictured, "run make screenshots, and look at the pictures"
