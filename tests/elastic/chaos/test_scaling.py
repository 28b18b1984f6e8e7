"""N1-N3, S, R1: whatever comes and goes, in whatever way, every sample has its effect once and no bit changes."""

from __future__ import annotations

import pytest

from tests.elastic.chaos import probe
from tests.elastic.chaos.story import Story


def test_a_job_has_the_bits_of_a_training_in_one_process_and_every_sample_its_effect_once() -> None:
    with Story("S") as story:
        story.at(2).finish()


@pytest.mark.parametrize("optimizer", list(probe.RATES))
def test_every_scaling_keeps_every_bit(optimizer: str) -> None:
    """Both at once, a second request during the first, several at once, the first server replaced, and all back."""
    with Story("N1-N3 handover", optimizer=optimizer, steps=200) as story:
        story.at(3).scale(servers=1, workers=1).scale(replace=["ps-0"])
        story.happens("scaled")
        story.happens("scaled")
        story.scale(servers=2).scale(workers=-1).happens("scaled")
        story.happens("scaled")
        story.scale(servers=-3, workers=1).happens("scaled")
        story.finish()
