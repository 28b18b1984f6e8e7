"""Views tell a browser everything once, and only what is new from then on; tables are escaped."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.experiment import Experiment, simulate
from labkit.live.feeds import Ghost
from labkit.notebook import LiveCards, LiveGantt, LiveHeatMap, LiveRun
from labkit.notebook.html import SHOWN, cluster_html, jobs_html, plain, record_html, runs_html, snapshot_html
from labkit.notebook.views import STYLE
from labkit.topology import build, no_network


@pytest.fixture
def experiment() -> Experiment:
    rng = np.random.default_rng(1)
    jobs = Jobs.of(
        arrival_s=np.sort(rng.uniform(0, 3600, 30)), total_steps=600, duration_s=rng.uniform(60, 900, 30),
        n_workers=2, model="<b>bold</b>", name="<i>thirty</i>",
    )  # fmt: skip
    return Experiment.of(jobs, cluster=no_network(2))


class Browser:
    """What a view sent."""

    def __init__(self, view) -> None:
        self.heard: list[tuple[dict, np.ndarray]] = []
        view.send = lambda content, buffers: self.heard.append((content, np.frombuffer(buffers[0], "<f4")))

    def rows(self, width: int) -> np.ndarray:
        """All rows since everything was told last."""
        last = max(i for i, (content, _) in enumerate(self.heard) if content["kind"] == "all")
        return np.concatenate([numbers for _, numbers in self.heard[last:]]).reshape(-1, width)


@pytest.mark.parametrize(("kind", "width", "history"), [(LiveGantt, 4, "jobs"), (LiveHeatMap, 3, "machines")])
def test_a_browser_gets_each_change_once(experiment, kind, width, history):
    async def notebook():
        live = LiveRun(experiment, scheduler="srtf", speedup=7200.0)
        view = kind()
        browser = Browser(view)
        view.watch(live)
        await live.start()
        return live, browser

    live, browser = asyncio.run(notebook())
    expected = np.array(getattr(live.board.changes, history), dtype="<f4")
    np.testing.assert_array_equal(browser.rows(width), expected)
    assert len(browser.heard) > 3
    assert max(len(numbers) for _, numbers in browser.heard[1:]) < expected.size
    assert browser.heard[-1][0]["over"]
    assert browser.heard[-1][0]["now"] == live.now_s


def test_a_browser_that_comes_late_gets_everything(experiment):
    live = LiveRun(experiment, scheduler="fifo").start().wait()
    view = LiveGantt(live)
    browser = Browser(view)
    view._hear(None, {"kind": "hello"}, [])
    assert [content["kind"] for content, _ in browser.heard] == ["all"]
    np.testing.assert_array_equal(browser.rows(4), np.array(live.board.changes.jobs, dtype="<f4"))


def test_a_view_that_watches_another_run_forgets_the_first(experiment):
    first, second = (LiveRun(experiment, scheduler=name) for name in ("fifo", "srtf"))
    view = LiveGantt(first)
    browser = Browser(view)
    view.watch(second)
    first.start().wait()
    assert [content["title"] for content, _ in browser.heard] == ["Jobs over time under srtf"]


def test_the_heat_map_tells_whose_gpus_are_held(experiment):
    live = LiveRun(experiment, scheduler="fifo")
    view = LiveHeatMap(live)
    half = experiment.run("fifo").events
    live.board.fold(half[: len(half) // 2])
    told = view.feed.now()["groups"]
    held = {group: gpus for group, gpus, _ in told}
    assert sum(held.values()) == live.board.gpus_in_use > 0
    assert all(says.startswith("job ") for _, gpus, says in told if gpus)


def test_a_ghost_knows_when_each_job_was_completed(experiment):
    record = experiment.run("srtf")
    ghost = Ghost.of(record)
    np.testing.assert_allclose(np.array(ghost.done_s), record.table["completion_s"])
    assert ghost.end_s == record.table["completion_s"].max()


def test_cards_follow_the_run(experiment):
    live = LiveRun(experiment, scheduler="fifo")
    cards = LiveCards(live)
    assert dict(cards.cards)["completed"] == "0 / 30"
    live.start().wait()
    assert dict(cards.cards)["completed"] == "30 / 30"
    assert dict(cards.cards)["decisions"] == str(live.board.n_decisions)


def test_tables_escape_names(experiment):
    record = experiment.run("fifo", name="<u>mine</u>")
    session = experiment.session("fifo")
    shown = [jobs_html(record.jobs), record_html(record), runs_html([record]), snapshot_html(session.snapshot())]
    for html in shown:
        assert not any(tag in html for tag in ("<b>", "<i>thirty", "<u>"))
    assert "&lt;b&gt;bold" in shown[0]
    assert "&lt;u&gt;mine" in shown[2]


def test_a_cluster_is_shown_by_kind_of_machine():
    html = cluster_html(build("gavel-36x3"))
    assert all(name in html for name in ("v100", "p100", "k80", "27 machines"))
    assert html.count("<tr>") == 4


def test_the_table_of_runs_marks_the_best_finished_one(experiment):
    records = [experiment.run(name) for name in ("fifo", "srtf")]
    best = min(records, key=lambda record: record.summary["mean_jct_s"]).info.scheduler
    rows = runs_html(records).split("<tr")[2:]
    assert [best in row for row in rows] == ["font-weight:600" in row for row in rows]


def test_the_extension_shows_tables_and_plain_words_and_can_be_unloaded():
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.run_line_magic("load_ext", "labkit.notebook")
    record = simulate(Jobs.of(arrival_s=[0], total_steps=[9], duration_s=9), cluster=no_network(1), scheduler="fifo")
    for thing in (record, record.jobs, record.cluster):
        data, _ = shell.display_formatter.format(thing)
        assert data["text/html"] == SHOWN[type(thing)](thing)
        assert data["text/plain"] == plain(thing)
        assert "array(" not in data["text/plain"]
    shell.run_line_magic("unload_ext", "labkit.notebook")
    assert "text/html" not in shell.display_formatter.format(record.cluster)[0]


def test_a_run_that_was_stopped_is_grey_has_no_times_and_is_ranked_nowhere(experiment):
    whole = experiment.run("fifo")
    quick = experiment.run("srtf")
    done_s = np.sort(quick.table["completion_s"])[len(quick.jobs) // 2]
    cut = replace(quick, events=quick.events[quick.events["time_s"] <= done_s])
    assert cut.summary["mean_jct_s"] < whole.summary["mean_jct_s"], "survivors look better"
    _, full, stopped, note = runs_html([whole, cut]).split("<tr")[1:]
    assert "font-weight:600" in full
    assert "font-weight:600" not in stopped
    assert 'class="unfinished"' in stopped
    assert stopped.count("<td>–</td>") == 4
    assert f"{cut.n_done} of {len(cut.jobs)}" in stopped
    assert "cannot be compared" in note
    assert "not to be compared with whole runs" in record_html(cut)


def test_after_a_restart_of_the_kernel_the_widget_says_what_to_do():
    """JupyterLab gives every widget this class when its kernel is gone; nothing else can be said then."""
    from importlib.metadata import distribution

    css = STYLE
    assert "Run this cell again" in css.partition(".labkit-app.jupyter-widgets-disconnected::before")[2][:300]
    scripts = [file for file in distribution("jupyterlab_widgets").files or () if file.suffix == ".js"]
    assert any("jupyter-widgets-disconnected" in file.locate().read_text(errors="replace") for file in scripts)
