"""What users bring: their modules, wherever these are; their randomness; models of very many blocks."""

from __future__ import annotations

import queue
import random  # noqa: TID251 - as users' data may draw
import subprocess
import sys
import tempfile
import types
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from labkit.core.errors import InputError
from labkit.elastic import JobError, job_start, train
from labkit.elastic.data import as_dataset
from labkit.elastic.process.member_process import ControllerLink
from labkit.elastic.protocol.blocks import layout
from labkit.elastic.protocol.messages.codec import decode
from labkit.elastic.protocol.messages.reports import Failed, LacksReplicas, Report, ShardLoss, ShardLosses, TrainingDone
from labkit.elastic.protocol.program import find_modules, module_paths
from labkit.elastic.transport import Channel, Handler, Message
from tests.elastic.transport.ends import pair
from tests.hang import HANG_S

pytestmark = pytest.mark.usefixtures("by_value")


def loss(model: nn.Module, batch: Any) -> Any:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def ones(n: int = 64, width: int = 4) -> Any:
    return as_dataset((torch.ones(n, width), torch.ones(n, 2)))


class Noisy:
    """Samples with noise of numpy's and Python's shared generators."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = np.random.randn() + random.random()  # noqa: NPY002
        return torch.full((4,), float(noise)), torch.ones(2)


def test_noise_of_numpy_and_python_does_not_depend_on_the_number_of_workers() -> None:
    """Before, only torch was seeded, and one worker and two trained different models without a word."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(4, 2)

    options: dict[str, Any] = {"steps": 6, "batch": 16, "servers": 1, "lr": 0.01}
    one, two = (train(model(), Noisy(), loss, workers=n, **options) for n in (1, 2))
    assert one.losses == two.losses
    assert len(set(one.losses)) == 6


def test_a_model_from_a_file_beside_the_script_is_found_from_any_folder(tmp_path: Path) -> None:
    """Before, workers did not know the folder of the script; the log that said so was deleted after 11 deaths."""
    script, elsewhere = tmp_path / "project" / "train.py", tmp_path / "elsewhere"
    (script.parent / "parts").mkdir(parents=True)
    elsewhere.mkdir()
    (script.parent / "own_model.py").write_text("from parts.layers import Layer\n")
    (script.parent / "parts" / "layers.py").write_text("import torch\n\nclass Layer(torch.nn.Linear):\n    pass\n")
    script.write_text(
        dedent("""
        import torch
        from own_model import Layer
        from labkit.elastic import train
        from labkit.elastic.data import as_dataset

        def loss(model, batch):
            return (model(batch[0]) - batch[1]).square().mean()

        if __name__ == "__main__":
            data = as_dataset((torch.ones(32, 4), torch.zeros(32, 2)))
            print(train(Layer(4, 2), data, loss, steps=2, batch=8, workers=1, servers=1, lr=0.1).version)
        """)
    )
    done = subprocess.run([sys.executable, script], cwd=elsewhere, capture_output=True, text=True, timeout=HANG_S)
    assert (done.stdout.strip(), done.returncode) == ("2", 0), done.stderr


def test_a_first_process_that_ends_with_an_error_ends_the_job_at_once_and_its_log_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    hidden = types.ModuleType("a_module_that_no_file_holds")
    exec("import torch\nclass Layer(torch.nn.Linear): pass", hidden.__dict__)
    monkeypatch.setitem(sys.modules, hidden.__name__, hidden)
    with pytest.raises(JobError) as failed:
        train(hidden.Layer(4, 2), ones(), loss, steps=2, batch=16, workers=2, servers=1, lr=0.1)
    told = failed.value.reason
    assert "\n" not in told
    assert "ended before it had begun, exit code 1: ModuleNotFoundError: No module named 'a_module_that_no_" in told
    (folder,) = tmp_path.iterdir()
    assert f"logs: {folder})" in told
    log = folder / f"{told.split()[0]}.log"
    assert "Traceback" in log.read_text()
    assert log == failed.value.log_file
    last = log.read_text().splitlines()[-1]
    assert "ModuleNotFoundError" in last
    assert str(failed.value).startswith(told)
    assert str(failed.value).endswith(last)


def test_modules_are_found_in_the_order_of_the_process_that_started_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = ["/usr/lib/somewhere", *sys.path]
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), "", *here])
    shipped = module_paths()
    assert shipped[:2] == [str(tmp_path / "a"), str(Path.cwd())]
    assert not any("site-packages" in path or path.endswith(".zip") for path in shipped)
    (tmp_path / "a").mkdir()
    monkeypatch.setattr(sys, "path", list(here))
    find_modules([*shipped, str(tmp_path / "not there")])
    assert sys.path[0] == str(tmp_path / "a")
    assert [path for path in sys.path if path in here] == here


def test_more_blocks_than_can_be_told_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_start, "layout", partial(layout, block_bytes=4))
    with pytest.raises(InputError, match="80008 numbers in 80008 blocks of parameters; expected at most 80000"):
        train(nn.Linear(10_000, 8), ones(), loss, steps=2, batch=16, lr=0.1)


def test_what_a_member_cannot_tell_ends_the_job_instead_of_vanishing() -> None:
    """Before, an event that fitted into no frame, or was no JSON, was dropped, and a process waited for it for ever."""
    told: queue.Queue[Any] = queue.Queue()

    class Controller(Handler):
        def received(self, channel: Channel, message: Message) -> None:
            told.put(decode(Report, message.meta))

    here, there = pair(Handler(), Controller())
    link = ControllerLink.__new__(ControllerLink)
    link.channel = here
    link.report(LacksReplicas(list(range(1_000_000))))
    link.report(ShardLosses(0, [ShardLoss(0, float("nan"))]))
    link.report(TrainingDone(3))
    said = [told.get(timeout=HANG_S) for _ in range(3)]
    assert [type(report) for report in said] == [Failed, Failed, TrainingDone]
    assert said[0].why.startswith("LacksReplicas cannot be sent: 0 bytes and a meta part of 6,")
    assert said[1].why.startswith("ShardLosses cannot be sent: ShardLosses.losses.0.1")
    here.close()
    there.close()


@pytest.mark.parametrize("sync", [True, False])
def test_a_model_of_thousands_of_blocks_trains(sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the map of more than about 2,000 blocks fitted into no frame: training hung without a word."""
    monkeypatch.setattr(job_start, "layout", partial(layout, block_bytes=64))
    model = nn.Linear(6_000, 8)
    assert job_start.layout(model).n_blocks > 2_900
    data = as_dataset((torch.ones(16, 6_000), torch.ones(16, 8)))
    result = train(
        model, data, loss, steps=2, batch=8, shards=2, workers=1, servers=1, sync=sync, optimizer="sgd", lr=1e-6
    )
    assert (result.version, len(result.losses)) == (2, 2)
    assert result.losses[1] < result.losses[0]
