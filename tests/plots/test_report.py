"""The report: one file, nothing from outside, nothing that a hostile name could do, and it looks alive in a browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.plots import page, report
from labkit.plots.report import write_report

from .runs import SCHEDULERS, record, records

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"&"


class Reader(HTMLParser):
    """Collects what a browser would load, and the scripts and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "xlink:href", "action", "data"}]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    return write_report(
        records(), tmp_path_factory.mktemp("report") / "a" / "b.html", title="Five", command="labkit demo"
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "report.html"
    return write_report(records(hostile=HOSTILE), path, title=HOSTILE, command=HOSTILE)


def test_the_report_loads_nothing_from_outside(written):
    read = Reader(written.read_text())
    assert all(link.startswith("#") for link in read.links)
    assert not {"link", "iframe", "img", "object", "embed", "base"} & set(read.tags)
    assert "default-src 'none'" in written.read_text()


def test_the_report_is_small_enough_to_send(written, tmp_path):
    long = write_report(records(n=3000), tmp_path / "long.html")
    assert written.stat().st_size < 3_000_000
    assert long.stat().st_size < 3_000_000


def test_the_report_tells_numbers_provenance_and_command(written):
    words = " ".join(Reader(written.read_text()).words)
    best = min(records(), key=lambda run: run.summary["mean_jct_s"])
    mean_min = best.summary["mean_jct_s"] / 60
    for said in (*SCHEDULERS, "labkit demo", "0123abc", "numpy 2.4.6", "2026-11-21", f"{mean_min:.2f}", "6 machines"):
        assert said in words, said


def test_every_figure_is_there_twice_as_svg_and_as_a_specification(written):
    text = written.read_text()
    read = Reader(text)
    assert read.tags.count("figure") == 5 + 2 * len(SCHEDULERS)
    assert text.count('class="spec"') == read.tags.count("figure")
    specs = [script for script in read.scripts if script.startswith('{"')]
    assert len(specs) == read.tags.count("figure")
    assert all("$schema" in json.loads(spec) for spec in specs)


def test_ids_of_static_figures_do_not_clash(written):
    ids: list[str] = []

    class Ids(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            ids.extend(value or "" for name, value in attrs if name == "id")

    Ids().feed(written.read_text())
    assert len(ids) == len(set(ids)) > 0


def test_hostile_names_stay_text(hostile):
    read = Reader(hostile.read_text())
    assert not read.handlers
    assert "img" not in read.tags
    assert len(read.scripts) == 2 + read.tags.count("figure")
    assert any("<img src=x" in word for word in read.words), "the name is shown as it is"


def test_the_vega_bundle_cannot_end_its_script():
    assert "</script" not in page.vega().lower()
    assert "<!--" not in page.vega()


def test_a_report_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def broken(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", broken)
    with pytest.raises(OSError, match="No space"):
        write_report([record("fifo")], path)
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_report_of_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="at least one run"):
        write_report([], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_runs_that_completed_nothing_can_be_reported(tmp_path):
    path = write_report([record("fifo", n=3, until_s=1.0)], tmp_path / "report.html")
    assert "up to 3 unfinished" in path.read_text()


def test_one_run_has_no_best_and_no_worst():
    card_notes = [card.note for card in report._cards([record("fifo")])]
    assert not any("shorter than" in note for note in card_notes)


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        pytest.skip("no Chromium on this machine (apt-get install chromium fonts-dejavu-core)")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=chromium,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"],
        )
        yield opened
        opened.close()


@pytest.mark.browser
def test_in_a_browser_figures_come_alive_offline_and_hostile_names_do_nothing(browser, hostile):
    tab = browser.new_page(viewport={"width": 1000, "height": 1300})
    asked: list[str] = []
    errors: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("pageerror", lambda error: errors.append(str(error)))
    tab.on("console", lambda message: errors.append(message.text) if message.type in {"error", "warning"} else None)
    tab.goto(hostile.as_uri())
    for figure in tab.locator("section > figure").all():
        figure.scroll_into_view_if_needed()
    tab.locator("section > details summary").first.click()
    tab.wait_for_function("document.querySelectorAll('figure.live canvas').length == 7")
    assert tab.title() == HOSTILE
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []
    tab.close()
