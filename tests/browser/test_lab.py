"""The live lab in a real JupyterLab, in a real browser: it draws, and its buttons answer."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.hang import HANG_S

from .axe import violations
from .lab import copy_for_lab, jupyter_lab

ROOT = Path(__file__).parents[2]
NOTEBOOK = "notebooks/04_schedulers.ipynb"
TALL = {"width": 1300, "height": 9500}
"""JupyterLab leaves out cells that are not on the screen."""

AT_ONCE_S = 2.0
"""A click is to be answered in 0.3 s on an idle machine; one that tests may be several times as slow."""

IDLE = "window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'"
INK = """canvas => {
  const {width, height} = canvas;
  const left = Math.round(80 * window.devicePixelRatio);
  const pixels = canvas.getContext('2d').getImageData(left, 0, width - left, height - 50).data;
  let n = 0;
  for (let i = 0; i < pixels.length; i += 4) n += pixels[i] < 215 ? 1 : 0;
  return n;
}"""

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    pytest.importorskip("jupyterlab", reason="JupyterLab is not here; pip install -e .[lab]")
    folder, home = tmp_path_factory.mktemp("served"), tmp_path_factory.mktemp("home")
    copy_for_lab(ROOT / "notebooks", ROOT / "traces", folder)
    notebook = json.loads((folder / NOTEBOOK).read_text())
    notebook["cells"] = [cell for cell in notebook["cells"] if "sweep" not in "".join(cell["source"])]  # it takes long
    (folder / NOTEBOOK).write_text(json.dumps(notebook))
    with jupyter_lab(folder, home=home) as address:
        shown = browser.new_page(viewport=TALL)
        shown.goto(address.format(NOTEBOOK))
        shown.wait_for_function(IDLE)
        shown.evaluate("void window.jupyterapp.commands.execute('notebook:run-all-cells')")
        shown.locator(
            ".labkit-app canvas:visible, .jp-OutputArea .jp-RenderedText[data-mime-type*=error]"
        ).first.wait_for()
        went_wrong = shown.locator(".jp-OutputArea .jp-RenderedText[data-mime-type*=error]").all_inner_texts()
        assert not went_wrong, went_wrong[0][-2000:]
        yield shown
        shown.close()


class Lab:
    """The widget, as a person sees it."""

    def __init__(self, page, *, shots: Path) -> None:
        self.page, self.box, self.shots = page, page.locator(".labkit-app"), shots

    def click(self, button: str) -> float:
        """Click, and return when it began."""
        began = time.perf_counter()
        self.box.locator("button", has_text=button).click()
        return began

    def wait_for(self, state: str) -> None:
        self.box.locator(".labkit-status", has_text=state).wait_for()

    def card(self, name: str) -> str:
        return self.box.locator(".labkit-card", has_text=name).locator("b").inner_text()

    def choose(self, field: int, value: str) -> None:
        self.box.locator("select").nth(field).select_option(value)

    def ink(self) -> int:
        return self.box.locator("canvas:visible").first.evaluate(INK)

    def wait_for_more(self, ink: int) -> int:
        """Wait until the chart has more ink than that; return how much."""
        until = time.monotonic() + HANG_S
        while (now := self.ink()) <= ink and time.monotonic() < until:
            self.page.wait_for_timeout(100)
        assert now > ink
        return now

    def tab(self, name: str) -> None:
        self.box.locator(".lm-TabBar-tab", has_text=name).click()
        self.page.wait_for_timeout(300)

    def shot(self, name: str) -> None:
        self.box.screenshot(path=self.shots / f"{name}.png")


@pytest.mark.parametrize("quiet", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_run_pause_step_and_stop_answer_and_the_charts_grow(page, tmp_path, quiet):
    """A quiet machine answers within AT_ONCE_S, too."""
    lab = Lab(page, shots=tmp_path)
    lab.choose(1, "1 h per second")
    for scheduler in ("fifo", "srtf"):  # another choice takes away what an earlier test has run
        lab.choose(0, scheduler)
        lab.wait_for("ready")
    blank = lab.ink()
    lab.shot("ready")
    assert violations(page, within=".labkit-app") == []

    lab.click("Run")
    lab.wait_for("running")
    lab.wait_for_more(lab.wait_for_more(blank))
    lab.shot("running")

    clicked = lab.click("Pause")
    lab.wait_for("paused")
    pause_s = time.perf_counter() - clicked
    page.wait_for_timeout(300)
    clock, decisions = lab.card("clock"), int(lab.card("decisions"))
    page.wait_for_timeout(500)
    assert lab.card("clock") == clock

    for n in (1, 2):
        lab.click("Step")
        lab.box.locator(".labkit-card", has_text="decisions").locator("b", has_text=str(decisions + n)).wait_for()
    page.wait_for_timeout(300)
    assert int(lab.card("decisions")) == decisions + 2

    lab.tab("Heat-map")
    assert lab.ink() > 0
    lab.shot("heat-map")
    lab.tab("Gantt")

    lab.click("Run")
    lab.wait_for("running")
    page.wait_for_timeout(500)
    clicked = lab.click("Stop")
    lab.wait_for("stopped")
    stop_s = time.perf_counter() - clicked
    lab.shot("stopped")
    assert "of 80" in lab.box.locator(".labkit-runs").inner_text()
    print(f"Pause answered in {pause_s:.2f} s, Stop in {stop_s:.2f} s; screenshots in {tmp_path}")
    assert not quiet or max(pause_s, stop_s) < AT_ONCE_S


def test_earlier_runs_stay_to_be_compared_and_a_run_can_be_taken_away_as_code(page, tmp_path):
    lab = Lab(page, shots=tmp_path)
    lab.choose(1, "as fast as possible")
    for scheduler in ("fifo", "packed", "drf"):
        lab.choose(0, scheduler)
        lab.wait_for("ready")
        lab.click("Run")
        lab.wait_for("done")
    rows = lab.box.locator(".labkit-runs tr:not(:has(.labkit-note))")
    rows.filter(has_text="drf").wait_for()  # the table is drawn a moment after the run says that it is done
    assert [name in rows.nth(-3 + i).inner_text() for i, name in enumerate(("fifo", "packed", "drf"))] == [True] * 3
    lab.box.locator(".labkit-live-legend").filter(has_text="completed under packed").first.wait_for()

    lab.box.get_by_text("Copy as code").click()
    python, shell = lab.box.locator("textarea:visible").all()
    assert python.input_value().startswith("import labkit\n")
    assert shell.input_value() == "labkit compare ../traces/demo.csv --schedulers drf --cluster demo --seed 0"
    lab.shot("compared")
    print(f"screenshots in {tmp_path}")


def test_what_cannot_be_run_is_told_in_one_line(page, tmp_path):
    lab = Lab(page, shots=tmp_path)
    cluster = lab.box.locator("input[type=text]").nth(1)
    cluster.fill("dem")
    cluster.press("Enter")
    lab.wait_for("failed")
    told = lab.box.locator(".labkit-error:visible")
    told.wait_for()  # a page draws what it is sent in parts
    assert told.inner_text().startswith("unknown cluster 'dem'. Did you mean 'demo'?")
    lab.shot("refused")
    cluster.fill("demo")
    cluster.press("Enter")
    lab.wait_for("ready")


def test_figures_are_live_and_come_from_no_other_machine(page):
    asked = page.evaluate("performance.getEntriesByType('resource').map(entry => new URL(entry.name).hostname)")
    assert set(asked) <= {"127.0.0.1", ""}
    assert page.locator(".jp-OutputArea .vega-embed svg, .jp-OutputArea .vega-embed canvas").count() >= 4
