"""The pictures of README and the start page: the lab in a real JupyterLab, a report, and the page of a run.

`python -m tests.browser.picture` writes docs/assets/lab-light.png and lab-dark.png, and the same of report and watch;
`python -m tests.browser.picture pages` those of report and watch alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import labkit
from labkit.live.follow import FollowedRun
from labkit.live.page import RunPage
from labkit.results import RunWriter

from .lab import copy_for_lab, headless, jupyter_lab
from .test_lab import IDLE

ROOT = Path(__file__).parents[2]
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
CODE = '%load_ext labkit.notebook\nimport labkit\nlabkit.LabApp("demo", cluster="demo")'
SIZE = {"width": 1150, "height": 920}
"""In CSS pixels. README shows it at 850, where letters of 13 px still have 10."""

PAGE = {"width": 1150, "height": 860}

BARE = """() => {
  const run = (command, options) => window.jupyterapp.commands.execute(command, options);
  run('application:toggle-side-tabbar', {side: 'left'});
  run('application:toggle-side-tabbar', {side: 'right'});
  run('statusbar:toggle');
}"""
COMPLETED = """least => [...document.querySelectorAll('.labkit-card')].some(card =>
  card.innerText.includes('completed') && parseInt(card.querySelector('b').textContent) >= least)"""


def main() -> None:
    """Write all pictures, or those of report and watch alone."""
    if sys.argv[1:] != ["pages"]:
        pictures_of_lab()
    pictures_of_pages()


def pictures_of_pages() -> None:
    """Write the pictures of a report of four schedulers, and of the page of a run half way through."""
    with tempfile.TemporaryDirectory() as name, headless() as browser:
        runs = labkit.compare("demo", cluster="demo", schedulers="fifo,srtf,las,optimus")
        report = labkit.plots.write_report(runs, Path(name) / "report.html", title="Trace demo, cluster demo")
        record = runs[1]
        writer = RunWriter.create(name, info=replace(record.info, run="srtf"), jobs=record.jobs, cluster=record.cluster)
        writer.append(record.events[: len(record.events) // 2])
        writer.flush()
        with RunPage(FollowedRun(writer.folder)) as followed:
            for what, url in (("report", report.resolve().as_uri()), ("watch", followed.url)):
                for scheme in ("light", "dark"):
                    page = browser.new_page(viewport=PAGE, color_scheme=scheme)
                    page.goto(url)
                    page.locator("canvas, svg").first.wait_for()
                    page.wait_for_timeout(2000)
                    page.screenshot(path=ROOT / "docs" / "assets" / f"{what}-{scheme}.png")
                    page.close()
        writer.close()


def pictures_of_lab() -> None:
    """Write both pictures of the lab."""
    with lab() as page:
        box = page.locator(".labkit-app")
        run(box, scheduler="fifo", pace="as fast as possible", until="done")
        run(box, scheduler="srtf", pace="1 h per second", until="running")
        page.wait_for_function(COMPLETED, arg=24, polling=50)
        box.locator("select").nth(1).select_option("10 min per second")
        page.wait_for_function(COMPLETED, arg=48, polling=50)
        box.locator("button", has_text="Pause").click()
        box.locator(".labkit-status", has_text="paused").wait_for()
        page.evaluate("document.activeElement.blur()")
        page.mouse.move(0, 0)
        for name, theme in THEMES.items():
            page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
            page.wait_for_timeout(3000)
            page.screenshot(path=ROOT / "docs" / "assets" / f"lab-{name}.png")


def run(box: Any, *, scheduler: str, pace: str, until: str) -> None:
    """Choose a scheduler and a pace in the form, press Run, and wait for a state."""
    for field, value in enumerate((scheduler, pace)):
        box.locator("select").nth(field).select_option(value)
    box.locator(".labkit-status", has_text="ready").wait_for()
    box.locator("button", has_text="Run").click()
    box.locator(".labkit-status", has_text=until).wait_for()


@contextmanager
def lab() -> Iterator[Any]:
    """Serve a notebook of one cell, run it, and yield its page once the lab is there."""
    with tempfile.TemporaryDirectory() as name:
        folder, home = Path(name) / "served", Path(name) / "home"
        copy_for_lab(ROOT / "notebooks", ROOT / "traces", folder)
        cell = {
            "cell_type": "code",
            "source": CODE,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "id": "lab",
        }
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        notebook = {"cells": [cell], "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        (folder / "lab.ipynb").write_text(json.dumps(notebook))
        home.mkdir()
        with jupyter_lab(folder, home=home) as address, headless() as browser:
            page = browser.new_page(viewport=SIZE, device_scale_factor=2)
            page.goto(address.format("lab.ipynb"))
            page.wait_for_function(IDLE)
            page.evaluate(BARE)
            page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
            page.locator(".labkit-app canvas:visible").first.wait_for()
            yield page


if __name__ == "__main__":
    main()
