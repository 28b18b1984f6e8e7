"""Figures for papers: in the width of a column, with type that can be read in print."""

from __future__ import annotations

import re

import pytest

from labkit import plots, simulate
from labkit.core.errors import InputError
from labkit.plots.figures import draw
from labkit.plots.paper import drawn_size
from labkit.plots.theme import as_svg

from .runs import figures, records


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", ["jct_cdf", "jct_bars", "utilisation", "fairness", "overheads", "gantt"])
def test_a_figure_is_as_wide_as_a_column_and_no_type_is_below_7_points(name, columns):
    spec = plots.for_paper(figures()[name], columns=columns).to_dict()
    wanted = {1: 3.35, 2: 7.0}[columns] * 72
    assert wanted - 1.5 <= drawn_size(spec)[0] <= wanted + 0.1
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)px"', as_svg(spec))]
    assert sizes
    assert min(sizes) >= 7.0


@pytest.mark.parametrize("ending", ["pdf", "svg", "png"])
def test_it_is_saved_in_the_format_of_its_name_with_its_size_in_print(ending, tmp_path):
    path = plots.save_for_paper(figures()["jct_cdf"], tmp_path / "a" / f"f.{ending}")
    told = path.read_bytes()
    if ending == "pdf":
        width = float(re.search(rb"/MediaBox ?\[0 0 ([\d.]+) ", told)[1])
    elif ending == "svg":
        width = float(re.search(rb'<svg[^>]* width="([\d.]+)pt"', told)[1])
    else:
        width = int.from_bytes(told[16:20], "big") / 300 * 72
    assert width == pytest.approx(3.35 * 72, abs=1.5)


@pytest.mark.parametrize("width_mm", [70.0, 88.9, 170.0])
def test_a_width_in_mm_is_that_of_the_whole_figure(width_mm):
    spec = plots.for_paper(figures()["jct_cdf"], width_mm=width_mm).to_dict()
    assert drawn_size(spec)[0] == pytest.approx(width_mm / 25.4 * 72, abs=1.5)


def test_what_cannot_be_drawn_is_told(tmp_path):
    with pytest.raises(InputError, match="a figure 20 mm wide; expected 40 to 250 mm"):
        plots.for_paper(figures()["jct_cdf"], width_mm=20)
    with pytest.raises(InputError, match="names on the axes and the legend leave no room for the figure in"):
        plots.for_paper(figures()["jct_cdf"], width_mm=45)
    with pytest.raises(InputError, match="columns is 3; expected 1"):
        plots.for_paper(figures()["jct_cdf"], columns=3)
    with pytest.raises(
        InputError, match=r"f\.pgf ends in '\.pgf'.*Save f\.pdf, and include it with .includegraphics.f\.pdf"
    ):
        plots.save_for_paper(figures()["jct_cdf"], tmp_path / "f.pgf")
    with pytest.raises(InputError, match="unknown kind of figure 'jtc'\\. Did you mean 'jct'"):
        draw(records(), kind="jtc")
    with pytest.raises(InputError, match="not the same schedulers on the same seeds"):
        draw(records(), kind="seeds")
    with pytest.raises(InputError, match="at least one run"):
        draw([], kind="jct")


def test_differences_of_seeds_are_against_the_scheduler_that_was_asked_for():
    found = [
        simulate("poisson(8, per_hour=30)", cluster="no_network(1)", scheduler=name, seed=seed)
        for name in ("fifo", "srtf")
        for seed in (0, 1)
    ]
    drawn = as_svg(draw(found, kind="seeds", base="srtf").to_dict())
    assert "minus that of srtf" in drawn
    with pytest.raises(InputError, match="unknown scheduler to compare --against 'las'"):
        draw(found, kind="seeds", base="las")
    with pytest.raises(InputError, match="leave out --against srtf"):
        draw(found, kind="jct", base="srtf")
