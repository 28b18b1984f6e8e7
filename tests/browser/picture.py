"""The picture of README: the lab in a real JupyterLab, half way through srtf, with the completions of fifo.

`python -m tests.browser.picture` writes docs/assets/lab-light.png and lab-dark.png.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from .lab import chromium, copy_for_lab, jupyter_lab
from .test_lab import IDLE, OPTIONS

ROOT = Path(__file__).parents[2]
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
CODE = '%load_ext labkit.notebook\nimport labkit\nlabkit.LabApp("demo", cluster="demo")'
SIZE = {"width": 1150, "height": 920}
"""In CSS pixels. README shows it at 850, where letters of 13 px still have 10."""

BARE = """() => {
  const run = (command, options) => window.jupyterapp.commands.execute(command, options);
  run('application:toggle-side-tabbar', {side: 'left'});
  run('application:toggle-side-tabbar', {side: 'right'});
  run('statusbar:toggle');
}"""
COMPLETED = """least => [...document.querySelectorAll('.labkit-card')].some(card =>
  card.innerText.includes('completed') && parseInt(card.querySelector('b').textContent) >= least)"""
MOST_MS = 600_000
"""For each step: a first run compiles kernels."""


def main() -> None:
    """Write both pictures."""
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
        with jupyter_lab(folder, home=home) as address, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium(), args=OPTIONS)
            page = browser.new_page(viewport=SIZE, device_scale_factor=2)
            page.set_default_timeout(MOST_MS)
            page.goto(address.format("lab.ipynb"))
            page.wait_for_function(IDLE)
            page.evaluate(BARE)
            page.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
            page.locator(".labkit-app canvas:visible").first.wait_for()
            yield page
            browser.close()


if __name__ == "__main__":
    main()
