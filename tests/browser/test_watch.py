"""Watching in a real browser: a run's page follows it, in light and dark; a widget whose kernel is gone says so."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.core import Jobs, resources
from labkit.experiment import simulate
from labkit.live.follow import FollowedRun
from labkit.live.page import RunPage
from labkit.plots.gantt import plot_gantt
from labkit.plots.palette import IN_USE, NO_GPU
from labkit.plots.theme import as_svg
from labkit.results import RunWriter, gantt

from .axe import violations
from .lab import jupyter_lab

ROOT = Path(__file__).parents[2]
PAPER = "canvas => Array.from(canvas.getContext('2d').getImageData(1, 1, 1, 1).data.slice(0, 3))"
COLOURS = """canvas => {
  const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const found = new Set();
  for (let i = 0; i < all.length; i += 4) found.add((all[i] << 16) | (all[i + 1] << 8) | all[i + 2]);
  return Array.from(found, (colour) => "#" + colour.toString(16).padStart(6, "0"));
}"""
DARK = """canvas => new Promise(done => {
  const ink = canvas.getContext('2d');
  const look = () => ink.getImageData(1, 1, 1, 1).data[0] < 90 ? done() : requestAnimationFrame(look);
  look();
})"""
KERNEL = "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel"
CELLS = [
    "from labkit.experiment import Experiment\nfrom labkit.notebook import LiveRun, RunBoard\n"
    "run = LiveRun(Experiment.of('traces/demo.csv', cluster='demo'), scheduler='srtf', speedup=600.0)\nRunBoard(run)",
    "await run.start()",
]

pytestmark = pytest.mark.browser


def test_the_page_of_a_run_follows_it_in_light_and_dark(browser, tmp_path):
    record = simulate(ROOT / "traces" / "demo.csv", cluster="demo", scheduler="srtf")
    info = replace(record.info, run="r")
    writer = RunWriter.create(tmp_path, info=info, jobs=record.jobs, cluster=record.cluster)
    half = len(record.events) // 2
    writer.append(record.events[:half])
    writer.flush()
    with RunPage(FollowedRun(writer.folder)) as page:
        shown = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        wrong: list[str] = []
        shown.on("pageerror", lambda error: wrong.append(str(error)))
        shown.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
        shown.goto(page.url)
        shown.locator(".labkit-state[data-state=running]").wait_for()
        canvas = shown.locator("#gantt canvas")
        assert canvas.evaluate(PAPER) == [255, 255, 255]
        done = shown.locator(".labkit-card", has_text="completed").locator("b")
        assert done.inner_text() == f"{page.run.model.board.n_done} / 80"
        writer.append(record.events[half:])
        writer.close()
        page.update()
        shown.locator(".labkit-state[data-state=done]").wait_for()
        assert done.inner_text() == "80 / 80"
        assert "workers" in shown.locator(".labkit-decisions").inner_text()
        assert violations(shown) == []
        shown.screenshot(path=tmp_path / "light.png", full_page=True)
        shown.emulate_media(color_scheme="dark")
        canvas.evaluate(DARK)
        assert max(shown.locator("#signals canvas").evaluate(PAPER)) < 90
        assert violations(shown) == []
        shown.screenshot(path=tmp_path / "dark.png", full_page=True)
        print(f"screenshots in {tmp_path}")
    shown.locator(".labkit-state[data-state=unreachable]").wait_for()
    assert [line for line in wrong if "ERR_" not in line] == []
    shown.close()


def test_a_job_without_a_gpu_is_painted_so_and_colours_end_at_the_most_held_as_in_the_static_chart(browser, tmp_path):
    demand = resources.amounts(gpus=np.array([0, 1, 1]), cpus=1.0)
    jobs = Jobs.of(
        arrival_s=[0, 0, 0], total_steps=60, duration_s=60, n_workers=[1, 3, 1], max_workers=12, worker_demand=demand
    )
    record = simulate(jobs, cluster="no_network(4)", scheduler="fifo")
    info = replace(record.info, run="r")
    with RunWriter.create(tmp_path, info=info, jobs=record.jobs, cluster=record.cluster) as writer:
        writer.append(record.events)
    with RunPage(FollowedRun(tmp_path / "r")) as page:
        shown = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        shown.goto(page.url)
        shown.locator("#gantt").get_by_text("holds tasks, no GPUs").wait_for()
        assert "holds 0 … 3 GPUs" in shown.locator("#gantt").inner_text(), "no job held more"
        assert {NO_GPU, IN_USE[-1], IN_USE[1]} <= set(shown.locator("#gantt canvas").evaluate(COLOURS))
        shown.close()
    static = as_svg(plot_gantt(gantt(record.events, record.jobs, record.cluster), record.table).to_dict())
    bars = {
        "#" + "".join(f"{int(part):02x}" for part in rgb) for rgb in re.findall(r"rgb\((\d+), (\d+), (\d+)\)", static)
    }
    assert {IN_USE[-1], IN_USE[1]} <= bars
    assert NO_GPU in static


def test_an_interrupted_cell_and_a_restarted_kernel_are_shown_as_what_they_are(browser, tmp_path):
    pytest.importorskip("jupyterlab", reason="JupyterLab is not here; pip install -e .[lab]")
    folder, home = tmp_path / "served", tmp_path / "home"
    home.mkdir()
    shutil.copytree(ROOT / "traces", folder / "traces")
    (folder / "watch.ipynb").write_text(json.dumps(_notebook(CELLS)))
    with jupyter_lab(folder, home=home) as address:
        page = browser.new_page(viewport={"width": 1300, "height": 1600})
        page.goto(address.format("watch.ipynb"))
        page.wait_for_function(f"{KERNEL.replace('.', '?.')}?.status === 'idle'")
        page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        state = page.locator(".labkit-app .labkit-state")
        state.locator("b", has_text="running").wait_for()
        page.evaluate(f"void {KERNEL}.interrupt()")
        state.get_by_text("was interrupted; the run continues").wait_for()
        assert state.get_attribute("data-state") == "running"
        page.screenshot(path=tmp_path / "interrupted.png")
        page.evaluate(f"void {KERNEL}.restart()")
        page.locator(".labkit-app.jupyter-widgets-disconnected").wait_for()
        state.wait_for(state="hidden")
        said = page.locator(".labkit-app").evaluate("box => getComputedStyle(box, '::before').content")
        assert "Run this cell again" in said
        page.screenshot(path=tmp_path / "restarted.png")
        print(f"screenshots in {tmp_path}")
        page.close()


def _notebook(cells: list[str]) -> dict:
    made = [
        {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": cell, "outputs": [], "execution_count": None}
        for i, cell in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def test_charts_of_a_page_that_still_connects_have_the_colour_of_paper(browser, tmp_path):
    record = simulate("demo", cluster="demo", scheduler="fifo", runs=tmp_path)
    with RunPage(FollowedRun(tmp_path / record.info.run)) as served:
        page = browser.new_page(color_scheme="light")
        page.route("**/events", lambda route: route.abort())
        page.goto(served.url)
        page.locator("canvas").nth(2).wait_for()
        page.wait_for_function("[...document.querySelectorAll('canvas')].every((c) => c.width === c.clientWidth)")
        corners = page.evaluate(
            "[...document.querySelectorAll('canvas')].map((c) => [...c.getContext('2d').getImageData(5, 5, 1, 1).data])"
        )
        assert corners == [[255, 255, 255, 255]] * 3
        page.close()
