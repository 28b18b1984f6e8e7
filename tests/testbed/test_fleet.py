"""All hosts at once, over real SSH servers."""

from __future__ import annotations


def test_a_command_runs_on_every_host_and_each_has_its_own_home(up, fleet):
    answers = fleet.run("echo $HOME")
    assert [(row.host, row.stdout.strip()) for row in answers] == [
        (spot.name, str(up.plan.home(spot))) for spot in up.plan.spots
    ]
