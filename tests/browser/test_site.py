"""The documentation site in a real browser: its start page and a page of wide tables, in light, dark and on a phone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .axe import violations

ROOT = Path(__file__).parents[2]
PAGES = ["index.md", "ten-minutes.md", "trace-formats.md"]

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build a few pages without notebooks, gallery and docstrings: their look is that of the theme and site.css."""
    pytest.importorskip("material", reason="mkdocs-material is not here; pip install -e .[docs]")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    docs, folder = tmp_path_factory.mktemp("docs"), tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs" / "assets", docs / "assets")
    for page in PAGES:
        shutil.copy(ROOT / "docs" / page, docs / page)
    nav = [{"Start": PAGES[:2]}, {"How to": PAGES[2:]}]
    parts = {"docs_dir": str(docs), "site_dir": str(folder), "plugins": [], "hooks": [], "nav": nav}
    build(load_config(str(ROOT / "mkdocs.yml"), **parts))
    return folder


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_the_page(browser, site, scheme, width):
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    for page in PAGES:
        tab.goto((site / page).with_suffix(".html").as_uri())
        tab.locator(f"body[data-md-color-scheme={'slate' if scheme == 'dark' else 'default'}]").wait_for()
        tab.wait_for_function(
            "[...document.querySelectorAll('.md-typeset__scrollwrap')].every(box => box.tabIndex === 0)"
        )
        assert [fault for fault in violations(tab) if "(moderate)" not in fault] == [], page
        assert tab.evaluate("document.documentElement.scrollWidth") == width, page
    tab.close()
