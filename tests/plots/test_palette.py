"""Colours of schedulers can be told apart: on white paper and on dark, by all readers, and in grey."""

from __future__ import annotations

import pytest

from labkit import plots
from labkit.plots.figures import KINDS, draw
from labkit.plots.palette import DASHES, OWN, PAPER, PREFERRED, SHADES, colour, colours
from labkit.plots.print_check import MOST_GREYS, VISIONS, collisions, lab, least_apart, least_grey, print_check
from labkit.plots.theme import DARK
from labkit.schedulers import available

from .runs import records

SIX = ["fifo", "srtf", "las", "drf", "tetris", "optimus"]


def test_lightness_is_that_of_the_cie():
    assert lab("#ffffff") == pytest.approx([100, 0, 0], abs=0.02)
    assert lab("#ff0000") == pytest.approx([53.24, 80.09, 67.20], abs=0.05)  # the values that every table of sRGB has
    assert lab("#808080", "protanopia") == pytest.approx(lab("#808080"), abs=0.05)  # grey stays grey


@pytest.mark.parametrize("vision", VISIONS)
def test_all_colours_are_20_apart_as_people_see_them(vision):
    assert least_apart(SHADES, vision) >= 20


@pytest.mark.parametrize("names", [SIX, [*SIX, "mine"], ["fifo", "dl2", "mine"], ["fifo", "fifo(backfill=True)"]])
def test_up_to_seven_are_told_apart_in_grey(names):
    assert least_grey(list(colours(names).values())) >= 8


def test_lightness_of_the_first_seven_suffices_in_any_choice():
    assert least_grey(SHADES[:MOST_GREYS]) >= 8
    assert {shade for names in PREFERRED.values() for shade in [names]} <= set(SHADES[:MOST_GREYS])


def test_every_scheduler_has_a_colour_and_one_of_the_users_own_has_the_strongest_ink():
    agnostic = {name for name in available() if name.endswith("_agnostic")}
    assert set(available()) - agnostic == set(PREFERRED)
    assert colour("mine.py:Mine(half_s=3)") == OWN
    assert lab(OWN)[0] == min(lab(shade)[0] for shade in SHADES)


def test_no_two_of_fourteen_are_alike_and_the_order_of_names_stays():
    names = [f"drf (seed {i})" for i in range(len(SHADES))]
    chosen = colours(names)
    assert list(chosen) == names
    assert len(set(chosen.values())) == len(names)
    assert len(colours([*names, "one more"])) == len(names) + 1
    assert colours(["mine", "drf", "drf_agnostic"])["drf"] == colour("drf")


def test_dashes_of_those_that_print_in_grey_differ():
    dashes = [tuple(DASHES[shade]) for shade in SHADES[:MOST_GREYS] if shade != OWN]
    assert len(set(dashes)) == len(dashes)


def test_what_is_dark_is_light_on_dark_paper():
    for shade in SHADES:
        assert lab(DARK.get(shade, shade))[0] - lab(DARK[PAPER])[0] > 30, shade


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "seeds"])
@pytest.mark.parametrize("columns", [1, 2])
def test_every_figure_is_fit_for_print(kind, columns):
    found = print_check(plots.for_paper(draw(records(), kind=kind), columns=columns))
    assert {row.what for row in found} > {"smallest type (pt)", "height (in)"}
    assert not [row for row in found if not row.good]


def test_words_over_each_other_are_found_and_turned_ones_are_measured_turned():
    text = '<text font-size="10px" transform="{}">0123456789</text>'
    here, beside, turned = (text.format(each) for each in ("translate(0,20)", "translate(60,20)", "rotate(-90)"))

    def svg(*parts: str) -> str:
        return f'<svg xmlns="http://www.w3.org/2000/svg"><g transform="translate(5,60)">{"".join(parts)}</g></svg>'

    assert len(collisions(svg(here, here))) == 1
    assert not collisions(svg(here, beside))
    assert not collisions(svg(here, turned))  # from y = 60 up, where `here` is below
