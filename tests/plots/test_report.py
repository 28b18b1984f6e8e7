"""The report: one file, nothing from outside, nothing that a hostile name could do, and it looks alive in a browser."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from labkit.core.errors import InputError
from labkit.core.text import human_s, time_unit
from labkit.experiment import simulate
from labkit.plots import page, report
from labkit.plots.palette import PURPLE
from labkit.plots.report import write_report
from labkit.plots.theme import DARK
from labkit.results import RunRecord
from tests.browser.axe import violations

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
    scale_s, _ = time_unit(pd.Series([run.summary["mean_jct_s"] for run in records()]).median())
    mean = best.summary["mean_jct_s"] / scale_s
    for said in (*SCHEDULERS, "labkit demo", "0123abc", "numpy 2.4.6", "2026-11-21", f"{mean:,.2f}", "6 machines"):
        assert said in words, said


def test_every_figure_is_there_twice_as_svg_and_as_a_specification(written):
    text = written.read_text()
    read = Reader(text)
    assert read.tags.count("figure") == 5 + 2 * len(SCHEDULERS)
    assert text.count('class="spec"') == read.tags.count("figure")
    specs = [script for script in read.scripts if script.startswith('{"')]
    assert len(specs) == read.tags.count("figure")
    assert all("$schema" in json.loads(spec) for spec in specs)


def test_all_jobs_of_all_runs_are_in_the_page_as_csv(written):
    text = written.read_text()
    packed = re.search(r'<script type="text/plain">([^<]+)</script>', text)[1]
    table = pd.read_csv(io.StringIO(gzip.decompress(base64.b64decode(packed)).decode()))
    assert table.groupby("run", sort=False).size().to_dict() == dict.fromkeys(SCHEDULERS, 40)
    srtf = table[table["run"] == "srtf"].reset_index(drop=True)
    assert srtf["jct_s"].tolist() == pytest.approx(record("srtf").table["jct_s"].tolist(), abs=0.001)


def test_a_report_opens_with_what_the_runs_show(written):
    words = " ".join(Reader(written.read_text()).words)
    assert words.index("has the lowest mean JCT") < words.index("Comparison")
    assert "Each scheduler ran once" in words


def test_runs_of_several_seeds_are_told_with_intervals(tmp_path):
    runs = [
        replace(each, info=replace(each.info, seed=seed))
        for seed in (1, 2, 3)
        for each in (record("fifo", n=20 + seed), record("drf", n=20 + seed))
    ]
    words = " ".join(Reader(write_report(runs, tmp_path / "r.html").read_text()).words)
    assert "Over 3 seeds" in words
    assert "On 3 seeds " in words
    assert "Difference to fifo on the same seeds" in write_report(runs, tmp_path / "r.html").read_text()
    assert report.seeds_table(runs[:-1]) is None, "a scheduler lacks a seed"
    assert report.seeds_table(records()) is None, "one seed"


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
    assert len(read.scripts) == 3 + read.tags.count("figure")  # Vega, the page's own, the packed jobs
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


@cache
def simulated() -> list[RunRecord]:
    return [
        simulate("poisson(30, per_hour=120)", cluster="no_network(2)", scheduler=name)
        for name in ("fifo", "las", "srtf")
    ]


def test_the_bound_stands_below_the_table_and_options_say_whose_they_are(tmp_path):
    runs = simulated()
    text = write_report(runs, tmp_path / "r.html").read_text()
    bound_s = runs[0].info.config["bound_jct_s"]
    assert f"Lower bound: a mean JCT of {human_s(bound_s)}" in text
    assert "bound_jct_s" not in text.split("<h2>Provenance</h2>")[1]
    assert re.search(r"<dt>Options of las</dt><dd>[^<]*quantum_s", text)
    common = re.search(r"<dt>Options</dt><dd>([^<]*)", text)
    assert common is not None
    assert "scheduler" not in common[1]


def test_fairness_is_that_of_the_worst_job_with_the_mean_beside_it(tmp_path):
    runs = simulated()
    text = write_report(runs, tmp_path / "r.html").read_text()
    worst = {run.info.scheduler: run.summary for run in runs}
    best = min(worst, key=lambda name: worst[name]["max_rho"])
    told = f"Fairest by the worst finish-time fairness of a job: {best}, ρ {worst[best]['max_rho']:.2f} at most, "
    assert f"{told}{worst[best]['mean_rho']:.2f} on average" in text
    assert "Worst ρ</button>" in text
    others = [run for run in runs if "las" not in run.info.scheduler and "ftf" not in run.info.scheduler]
    assert len({run.summary["max_rho"] for run in others}) > 1
    assert "Fairest" not in write_report(others, tmp_path / "others.html").read_text()


def test_one_run_has_no_best_and_no_worst():
    card_notes = [card.note for card in report._cards([record("fifo")])]
    assert not any("shorter than" in note for note in card_notes)


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
    tab.wait_for_function("document.querySelectorAll('figure.live svg.marks').length == 7")
    assert tab.title() == HOSTILE
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert errors == []
    tab.close()


@pytest.mark.browser
def test_in_a_browser_tables_sort_the_jobs_are_found_and_saved(browser, written):
    tab = browser.new_page(viewport={"width": 1000, "height": 1300}, color_scheme="dark")
    tab.goto(written.as_uri())
    table = tab.locator("table.sortable")
    means = {run.info.scheduler: run.summary["mean_jct_s"] for run in records()}
    ranked = sorted(means, key=means.__getitem__)
    table.get_by_role("button", name="Mean JCT").click()
    assert table.locator("tbody th").all_inner_texts() == ranked
    table.get_by_role("button", name="Mean JCT").click()
    assert table.locator("tbody th").all_inner_texts() == ranked[::-1]
    jobs = tab.locator("#jobs")
    assert jobs.locator("tbody tr").count() == 25
    jobs.get_by_role("button", name="Show 500 more").press("Enter")  # a click may miss while the page is laid out
    assert jobs.locator(".told").inner_text() == "40 of 40 jobs shown"
    jobs.locator("input").fill("job-0007")
    assert jobs.locator("tbody th").all_inner_texts() == ["job-0007"]
    jobs.locator("input").fill("")
    jobs.locator("select").select_option("drf")
    jobs.get_by_role("button", name="JCT (s)").click()
    assert jobs.locator("tbody th").first.inner_text() == record("drf").table.sort_values("jct_s")["id"].iloc[0]
    with tab.expect_download() as saved:
        jobs.get_by_role("button", name="Save all runs as CSV").click()
    assert len(pd.read_csv(saved.value.path())) == 40 * len(SCHEDULERS)
    with tab.expect_download() as saved:
        tab.get_by_role("button", name="Save as CSV", exact=True).click()
    assert pd.read_csv(saved.value.path())["Mean JCT (s)"].max() == pytest.approx(max(means.values()))
    ink = tab.evaluate("getComputedStyle(document.querySelector('figure svg [fill=\"#1b2330\"]')).fill")
    assert ink == "rgb(230, 234, 241)", "dark mode has light ink in figures"
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.locator(".tools").first.is_visible()
    tab.close()


def test_in_the_dark_a_scheduler_has_the_ink_of_dark_paper_in_figures_and_beside_its_name(written):
    page = written.read_text("utf-8")
    assert page.count(f'.dot[style="background:{PURPLE}"] {{ background: {DARK[PURPLE]}') == 1
    assert f'figure svg [stroke="{PURPLE}"] {{ stroke: {DARK[PURPLE]}; }}' in page


@pytest.mark.browser
def test_in_a_browser_a_spreadsheet_computes_no_text_of_a_saved_table(browser, tmp_path):
    names = ["=1+1", "@SUM(A1)", "+cmd|x", "-2+3", "-5", "plain, quoted"]
    runs = [
        replace(each, info=replace(each.info, scheduler=name)) for each, name in zip(records(), names, strict=False)
    ]
    tab = browser.new_page()
    tab.goto(write_report(runs, tmp_path / "r.html").as_uri())
    for button, column in (("Save as CSV", 0), ("Save all runs as CSV", 0)):
        with tab.expect_download() as saved:
            tab.get_by_role("button", name=button, exact=True).click()
        told = pd.read_csv(saved.value.path(), dtype=str).iloc[:, column].unique()
        assert list(told) == ["'=1+1", "'@SUM(A1)", "'+cmd|x", "'-2+3", "-5", "plain, quoted"][: len(told)]
    tab.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_in_a_browser_axe_finds_no_fault(browser, written, scheme):
    tab = browser.new_page(viewport={"width": 1000, "height": 1300}, color_scheme=scheme)
    tab.goto(written.as_uri())
    assert violations(tab) == []
    tab.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [800, 1280])
def test_in_a_browser_long_labels_fit(browser, tmp_path, width):
    long = "las(quantum_s=60, threshold_gpu_s=36000, placer=" + "'own_package.module:Class'" * 2 + ")"
    runs = [replace(each, info=replace(each.info, scheduler=long + str(i))) for i, each in enumerate(records())]
    page_of_all = write_report(runs, tmp_path / "long.html", title=long)
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(page_of_all.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    for box in tab.locator("table.sortable, .card, .conclusion").all():
        assert box.evaluate("each => each.scrollWidth <= each.clientWidth + 1"), box.inner_text()[:40]
    inside = "table => table.offsetWidth <= table.parentElement.clientWidth + 1"
    assert tab.locator("table.sortable").evaluate(inside), "the comparison needs no scrolling"
    tab.close()
