"""The file `controller.json`: what a controller finds in it, and what it says of one that it cannot use."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from labkit.core.errors import InputError
from labkit.elastic import Job, JobError, start
from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.controller_state import VERSION, AskedScaling, SavedController, SavedProcess
from labkit.elastic.controller.job_files import STATE, StateFile
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.process.local_members import running
from labkit.elastic.protocol.messages.codec import from_json, load_struct, to_json
from labkit.elastic.protocol.program import Spec
from labkit.elastic.protocol.sites import Site
from tests.elastic.test_places import Spread
from tests.elastic.test_standby import Followed
from tests.hang import HANG_S

REMEDY = "start the job in its folder again, and it continues from the newest checkpoint."


def busy() -> Followed:
    """Return a job with replicas, a lost server, a request under way and others that wait."""
    play = Followed()
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.join()
    play.move()
    play.done(play.machine.scale(workers=1, strategy="suspend"))
    play.done(play.machine.scale(place={"here": (2, 3)}, strategy="handover"))
    play.done(play.machine.left("worker-0", reason="exit code -9"))
    return play


def whole(machine: Controller) -> SavedController:
    begun = {name: None if member.ever_joined else 7.5 for name, member in machine.job.members.items()}
    processes = tuple(SavedProcess(name, "here", 1000 + i, begun[name]) for i, name in enumerate(begun))
    return SavedController(VERSION, machine.state(), processes, (AskedScaling("a1", 1), AskedScaling("b2", 2)))


def spec(n_blocks: int = 8, *, sites: tuple[Site, ...] = ()) -> Spec:
    return Spec(
        params=(("w", 0, (n_blocks,)),), extents=tuple((i, 1) for i in range(n_blocks)), optimizer="sgd", options={},
        batch=8, n_shards=2, n_steps=9, sites=sites,
    )  # fmt: skip


@given(state=st.from_type(SavedController))
def test_any_state_is_read_as_it_was_written(state: SavedController) -> None:
    assert from_json(SavedController, to_json(state)) == state


def test_a_busy_controllers_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    play = busy()
    state = whole(play.machine)
    StateFile(tmp_path).write(state)
    found = StateFile(tmp_path).read(spec(len(play.machine.job.terms.sizes)))
    assert found == state
    machine = found.machine
    assert machine.replicas.pending
    assert machine.deaths
    assert machine.requests.again
    assert machine.requests.dropped


def test_the_state_of_a_successor_is_the_one_that_it_took_over_without_what_was_dropped() -> None:
    play = busy()
    state = play.machine.state()
    other = Controller(play.machine.job.terms, reassign=reassign)
    other.take_over(state)
    requests = replace(state.requests, dropped=())
    assert other.state() == replace(state, phase="taking_over", requests=requests)


def test_a_state_does_not_change_with_the_controller() -> None:
    play = busy()
    state, text = play.machine.state(), to_json(play.machine.state())
    play.done(play.machine.scale(servers=1, strategy="handover"))
    play.machine.job.add_member("worker", "here")
    assert to_json(state) == text
    assert play.machine.state() != state


@pytest.mark.parametrize(
    ("was", "now", "what"),
    [
        ('"version":1', '"version":2', "SavedController.version is 2: Input should be 1"),
        ('"version":1,', "", "SavedController.version: Field required"),
        ('"phase":"training"', '"phase":"asleep"', "SavedController.machine.phase is 'asleep': Input should be"),
        ('"era":1', '"era":-1', "SavedController.machine.era is -1: Input should be greater"),
        ('"era":1', '"era":1,"age":1', "SavedController.machine.age is 1: Unexpected"),
        ('"role":"server"', '"role":"king"', "SavedController.machine.members.0.role is 'king': Input should be"),
        ('"pid":1000', '"pid":"1000"', "SavedController.processes.0.pid is '1000': Input should be a valid integer"),
        ('"owners":[', '"owners":[0,', "SavedController.machine.owners.0 is 0: Input should be a valid string"),
        ('"owners":[', '"owners":["ps-0",', "SavedController.machine.owners has 9 blocks: expected 8"),
        ('"moves":[', '"moves":[0,', "SavedController.machine.moves has 9 blocks: expected 8"),
        ('"load":null', '"load":[0.5]', "SavedController.machine.load has 1 blocks: expected 8"),
        ('"turns":[[0', '"turns":[[8', "SavedController.machine.replicas.turns.0.0 is 8: expected a number below 8"),
        ('"strategy":"handover"', '"strategy":"luck"', "machine.requests.again.0.strategy is 'luck': Input should"),
        ('"cause":0', '"cause":99', "SavedController.machine.cause is 99: Input should be"),
        ('"furthest":', '"further":', "SavedController.machine.deaths.0.furthest: Field required"),
        ('"site":"here"', '"site":"mars"', "SavedController.machine.members.0.site is 'mars': expected one of here"),
        ("{", "", "SavedController: Invalid JSON"),
    ],
)
def test_a_damaged_state_is_refused_in_one_line_with_field_value_and_remedy(
    tmp_path: Path, was: str, now: str, what: str
) -> None:
    play = busy()
    StateFile(tmp_path).write(whole(play.machine))
    text = (tmp_path / STATE).read_text()
    assert was in text
    (tmp_path / STATE).write_text(text.replace(was, now, 1))
    with pytest.raises(InputError) as said:
        StateFile(tmp_path).read(spec(len(play.machine.job.terms.sizes)))
    told = str(said.value)
    assert told.startswith(f"{tmp_path / STATE} is damaged, or of another version of labkit: ")
    assert what in told
    assert told.endswith(REMEDY)
    assert "\n" not in told


def test_the_state_of_a_job_with_other_sites_or_blocks_is_refused(tmp_path: Path) -> None:
    play = Spread({"a/0": (1, 1), "b/0": (1, 1)})
    play.train()
    play.done(play.machine.scale(place={"a/0": (1, 1), "b/0": (0, 1), "c/0": (1, 0)}, strategy="handover"))
    processes = (SavedProcess("ps-0", "a/0", 7, None),)
    StateFile(tmp_path).write(SavedController(VERSION, play.machine.state(), processes, ()))
    n = len(play.machine.job.terms.sizes)
    known = tuple(Site(name, host) for name, host in play.machine.job.terms.sites.items())
    assert StateFile(tmp_path).read(spec(n, sites=known)).processes == processes
    few = tuple(site for site in known if site.name in ("a/0", "b/0"))
    with pytest.raises(InputError, match=r"members\.4\.site is 'c/0': expected one of a/0, b/0; start the job"):
        StateFile(tmp_path).read(spec(n, sites=few))
    with pytest.raises(InputError, match=rf"machine\.owners has {n} blocks: expected {n + 1}; start the job"):
        StateFile(tmp_path).read(spec(n + 1, sites=known))


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def training(folder: Path, *, steps: int) -> Job:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 2), torch.randn(64, 4), torch.randn(64, 2)
    return start(
        model, TensorDataset(x, y), loss, steps=steps, batch=16, shards=4, workers=1, servers=1, lr=0.1, folder=folder,
        save_every=5,
    )  # fmt: skip


def test_a_job_whose_state_is_of_another_version_ends_with_one_line_and_goes_on_in_its_folder(tmp_path: Path) -> None:
    with pytest.raises(JobError) as said, training(tmp_path, steps=1_000_000) as job:  # noqa: PT012
        next(event for event in job.events() if event["event"] == "saved")
        os.kill(job.pid, signal.SIGSTOP)
        state = load_struct(tmp_path / STATE, SavedController).machine
        text = (tmp_path / STATE).read_text()
        (tmp_path / STATE).write_text(text.replace('"version":1', '"version":2', 1))
        os.kill(job.pid, signal.SIGKILL)
        job.wait(timeout_s=HANG_S)
    told = said.value.reason
    fault = "SavedController.version is 2: Input should be 1"
    assert told.startswith(f"the controller died: {tmp_path / STATE} is damaged, or of another version of labkit: ")
    assert f"{fault}; {REMEDY.removesuffix('.')} (the newest good checkpoint is " in told
    assert "\n" not in told
    assert (tmp_path / "controller.log").read_text().count("is damaged") == 1  # it was not started again and again
    assert running(tmp_path) == {}
    with training(tmp_path, steps=state.saved + 20) as job:
        began = next(event for event in job.events() if event["event"] == "began")
        result = job.wait(timeout_s=HANG_S)
    assert result.version == state.saved + 20
    assert began["version"] >= state.saved >= 5
