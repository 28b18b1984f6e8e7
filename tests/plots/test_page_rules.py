"""A report and a run's page keep the rules of WCAG 2.1 that can be read off them: names, order, contrast, focus."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

import labkit
from labkit.plots.report import write_report

from .runs import records

VOID = {"meta", "link", "input", "br", "img", "hr", "path", "rect", "line", "circle", "use"}
LEAST = 4.5
"""Contrast of text (success criterion 1.4.3)."""
PACKAGE = Path(labkit.__file__).parent


class Page(HTMLParser):
    """Elements of a page: tag, attributes, and the text that is in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        element = (tag, {name: value or "" for name, value in attrs}, [])
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, _, words in self._open:
            words.append(data)

    def all(self, *tags: str) -> list[tuple[str, dict[str, str], str]]:
        return [(tag, attrs, "".join(words).strip()) for tag, attrs, words in self.elements if tag in tags]


@pytest.fixture(scope="module", params=["report", "watch"])
def page(request, tmp_path_factory):
    if request.param == "watch":
        return Page((PACKAGE / "live/page.html").read_text("utf-8").replace("$title", "run").replace("$about", "about"))
    path = write_report(records(), tmp_path_factory.mktemp("report") / "r.html", title="Five", command="labkit demo")
    return Page(re.sub(r"<(script|style)\b.*?</\1>", "", path.read_text("utf-8"), flags=re.DOTALL))


def test_it_has_a_language_a_title_a_viewport_and_one_main_part(page):
    assert page.all("html")[0][1]["lang"] == "en"
    assert page.all("title")[0][2]
    assert [attrs for _, attrs, _ in page.all("meta") if attrs.get("name") == "viewport"]
    assert len(page.all("main")) == len(page.all("h1")) == 1


def test_no_level_of_headings_is_skipped(page):
    levels = [int(tag[1]) for tag, _, _ in page.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(text for _, _, text in page.all("h1", "h2", "h3"))


def test_whatever_can_be_pressed_and_every_heading_of_a_column_has_a_name(page):
    for tag, attrs, text in page.all("button", "summary", "a", "th"):
        assert text or attrs.get("aria-label"), (tag, attrs)


def test_figures_and_parts_that_scroll_have_a_name_and_can_be_reached_with_the_keyboard(page):
    parts = [
        (tag, attrs) for tag, attrs, _ in page.all("figure", "div") if tag == "figure" or attrs.get("class") == "wide"
    ]
    for tag, attrs in parts:
        assert attrs.get("aria-label"), tag
        assert attrs.get("tabindex") == "0"


def test_no_id_stands_twice(page):
    ids = [attrs["id"] for _, attrs, _ in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def palettes(css: str) -> list[dict[str, str]]:
    """Return the colours of a style sheet by name, light and dark; the dark ones stand in for the light ones."""
    light = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", css.partition("@media")[0]))
    dark = re.search(r"prefers-color-scheme: dark\) \{(.*?)\}", css, re.DOTALL)
    return [light, {**light, **dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{3,6})", dark[1]))}]


@pytest.mark.parametrize("file", ["plots/report.css", "live/live.css"])
@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_what_is_behind_it(file, dark):
    shades = palettes((PACKAGE / file).read_text("utf-8"))[dark]
    texts = ("ink", "muted", "pale", "good", "accent") if "report" in file else ("ink", "muted", "bad")
    for text in texts:
        for behind in ("paper", "back"):
            assert contrast(shades[text], shades[behind]) >= LEAST, (text, behind, shades[text], shades[behind])


def test_contrast_of_black_on_white_is_21():
    assert contrast("#000", "#ffffff") == pytest.approx(21)
