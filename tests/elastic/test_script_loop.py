"""Scripts with a loop of their own: alone, with workers that are killed, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, get_worker_info

import labkit
from benchmarks.ports.faults import disturbed
from labkit.core.errors import InputError
from labkit.elastic import JobError
from labkit.elastic.errors import ChangedError
from labkit.elastic.job import ScaleRequest, follow
from labkit.elastic.loading import Loading, with_batch_size
from labkit.elastic.loop_body import BodyCheck
from labkit.elastic.own_training import OwnTraining, read_training
from labkit.elastic.verification import VerifiedTraining, disturb, verify
from labkit.testbed.run.own_scripts import training_from
from tests.command import labkit_in_a_process

STEPS = 40
SCRIPT = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import labkit
from beside_the_loop import width

x = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))

class Samples(TensorDataset):
    shift = 0.0

    def set_epoch(self, epoch):
        self.shift = epoch * torch.rand(8) / 10

    def __getitem__(self, i):
        time.sleep(WAIT)
        x, y = super().__getitem__(i)
        return x + self.shift, y

loader = DataLoader(Samples(x, (x.sum(1) > 0).long()), batch_size=32, shuffle=True)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.ReLU(), nn.Linear(width, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
print("before the loop")
with labkit.elastic(model, optimizer, loader, steps=40, shards=4, clip_norm=1.0, scheduler=scheduler, seed=3) as job:
    for x, y in job:
        out = model(x)
        loss = nn.functional.cross_entropy(out, y, label_smoothing=0.1 / (1 + job.update))
        job.step(loss, accuracy=(out.argmax(1) == y).float().mean())
print("after the loop", model.training, job.starting)
torch.save(model.state_dict(), "state.pt")
torch.save([optimizer.state_dict(), scheduler.last_epoch], "optimizer.pt")
"""


@pytest.fixture(autouse=True)
def own_main() -> Iterator[None]:
    """A script is the module `__main__` while it runs up to its loop, and no longer."""
    before, path = sys.modules["__main__"], list(sys.path)
    yield
    assert sys.modules["__main__"] is before
    sys.path[:] = path
    sys.modules.pop("beside_the_loop", None)


def write(folder: Path, text: str = SCRIPT, *, wait_s: float = 0.0) -> Path:
    (folder / "beside_the_loop.py").write_text("width = 16\n")
    (folder / "script.py").write_text(text.replace("WAIT", str(wait_s)))
    return folder / "script.py"


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_script_has_the_bits_that_it_has_alone_with_three_workers_kills_and_scalings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So each sample counts once, whichever process computed its loss: another sample would change the bits."""
    script = write(tmp_path, wait_s=0.01)
    alone = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert alone.stdout.splitlines() == ["before the loop", "after the loop True True"]
    assert "trains alone, in this process, in batches of 1/4 of an update" in alone.stderr
    monkeypatch.chdir(tmp_path)
    expected, optimizer = torch.load("state.pt"), str(torch.load("optimizer.pt"))
    Path("optimizer.pt").unlink()
    training = read_training(script, seed=3)
    with training.start(workers=3, servers=2, restarts=50, save_every=10) as job:
        assert disturb(job) == "of which one was killed and one came"  # a server stands still meanwhile
        disturbed(job, STEPS, kills=4)  # as many as there is time for
        result = job.wait()
        training.finish(result)
    assert result.version == STEPS
    assert same(result.state_dict(), expected)
    assert same(training.model.state_dict(), result.state_dict()), "the script continues with the trained model"
    assert str(torch.load("optimizer.pt")) == optimizer, "and with its optimizer and scheduler"
    assert "accuracy" in result.metrics


def test_a_body_reads_the_learning_rate_of_its_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler divides it by ten after 10, 20 and 30 updates; a worker that is added begins with that of then."""
    text = SCRIPT.replace("job.step(loss,", "job.step(loss * (1 + 50 * scheduler.get_last_lr()[0]),")
    script = write(tmp_path, text)
    subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, check=True)
    monkeypatch.chdir(tmp_path)
    with read_training(script, seed=3).start(workers=1, servers=1) as job:
        result = follow(job, [ScaleRequest.parse("12:+1worker")], strategy="handover", on_event=lambda _: None)
    assert same(result.state_dict(), torch.load("state.pt"))


def test_the_command_trains_a_script_with_its_arguments_and_lets_it_go_on_once(tmp_path: Path) -> None:
    parser = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--rate', type=float)\n"
    text = SCRIPT.replace("import time\n", f"{parser}rate = parser.parse_args().rate + 0\nimport time\n")
    methods = "import signal, torch\ntorch.multiprocessing.set_start_method('spawn')\n"
    handles = f"{methods}signal.signal(signal.SIGUSR2, lambda *_: print('handled'))\n"
    then = "import os, sys\nassert sys.argv[1:] == ['--rate', '0.1'], sys.argv\nos.kill(os.getpid(), signal.SIGUSR2)\n"
    script = write(tmp_path, f"{handles}{text}\n{then}")
    words = "--steps", "5", "--workers", "2", "--json", "--", "--rate", "0.1"
    done = labkit_in_a_process("train", script.name, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 5, "what is typed counts more than what the script says"
    assert done.stderr.count("after the loop") == 1
    assert done.stderr.count("the script's handler of SIGUSR2 runs in this process") == 1
    assert "handled" in done.stderr
    assert "nothing was proved" not in done.stderr, "the script is run again for the proof, in the same process"
    state = torch.load(tmp_path / "state.pt")
    assert int(state["1.num_batches_tracked"]) == 5


def test_a_script_is_verified_beside_a_plain_loop(tmp_path: Path) -> None:
    own = read_training(write(tmp_path), seed=3)
    options = {name: value for name, value in own.arguments.items() if name != "steps"}
    findings = list(verify(VerifiedTraining(own.model, own.data, own.loss, options), steps=3))
    assert [finding.right for finding in findings] == [True] * len(findings), findings
    assert "equal bits" in findings[1].line


def test_a_script_and_the_module_beside_it_travel_as_text(tmp_path: Path) -> None:
    script = write(tmp_path)
    own = training_from("script.py", code=tmp_path, data=None, seed=3)
    assert type(own.optimizer) is torch.optim.AdamW
    own.save(tmp_path)
    sent = (tmp_path / "training.pickle").read_bytes()
    for file in (script, tmp_path / "beside_the_loop.py"):
        file.unlink()
    sys.modules.pop("beside_the_loop")
    there = OwnTraining.load(tmp_path)
    assert there.loss is not own.loss
    assert same(there.model.state_dict(), own.model.state_dict())
    assert float(there.loss(there.model, there.data.dataset[:2])[0].detach()) > 0, "its loop answers for a batch"
    assert len(sent) < 20_000, "the samples are made there"


def test_the_options_of_a_file_go_with_its_optimizer(tmp_path: Path) -> None:
    """One form for all commands: `labkit deploy --script` and `--auto` take what `labkit train` takes."""
    lines = (
        "import torch", "model = torch.nn.Linear(2, 1)", "data = (torch.ones(8, 2), torch.ones(8, 1))",
        "def loss(m, b): return (m(b[0]) - b[1]).square().mean()", "options = {'clip_norm': 1.0}",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    )  # fmt: skip
    (tmp_path / "mine.py").write_text("\n".join(lines))
    own = training_from("mine.py", code=tmp_path, data=None, seed=0)
    own.save(tmp_path)
    there = OwnTraining.load(tmp_path)
    assert there.arguments["clip_norm"] == 1.0
    assert there.optimizer.param_groups[0]["params"][0] is next(iter(there.model.parameters()))


def test_a_script_keeps_its_parametrizations_and_the_hooks_of_its_parameters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch pickles neither, but workers run the script."""
    layer = "nn.utils.parametrizations.weight_norm(nn.Linear(8, width)), nn.Tanh()"
    text = SCRIPT.replace("nn.Linear(8, width), nn.BatchNorm1d(width), nn.Dropout(0.1), nn.ReLU()", layer)
    hook = "model[2].bias.register_hook(lambda gradient: 3 * gradient)\n"
    script = write(tmp_path, text.replace("optimizer =", f"{hook}optimizer =", 1).replace("steps=40", "steps=5"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile(script.read_text(), script, "exec"), {"__name__": "alone"})
    expected = torch.load("state.pt")
    with read_training(script, seed=3).start(workers=2, servers=1) as job:
        assert same(job.wait().state_dict(), expected)
    script.write_text(script.read_text().replace("3 * gradient", "gradient.clamp(-1, 1)"))
    with pytest.raises(
        InputError, match=r"parameter '2\.bias' has the hook <lambda> \(script\.py, line \d+\).*4 shards"
    ):
        read_training(script, seed=3).start(workers=2, servers=1)


# --- what is refused


def loop(**options: Any) -> Any:
    model = nn.Linear(2, 1)
    samples = torch.ones(8, 2), torch.zeros(8, 1)
    return labkit.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), samples, **{"steps": 2, **options})


def test_two_models_of_a_loop_are_one() -> None:
    with pytest.raises(InputError, match=r"model is a tuple; .* torch\.nn\.ModuleDict"):
        labkit.elastic((nn.Linear(2, 1), nn.Linear(2, 1)), "sgd", torch.ones(8, 2), steps=1, lr=0.1)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"steps": None}, "steps is None, epochs None; expected one of them"),
        ({"epochs": 3}, "steps is 2, epochs 3; expected one of them"),
        ({"shard": 4}, "unknown option of labkit.elastic 'shard'.*shards"),
    ],
)
def test_a_loop_that_makes_no_sense_is_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        loop(**options)


def test_a_loop_in_a_loop_over_epochs_is_refused_before_it_trains(tmp_path: Path) -> None:
    """The first one would train all of them; the second one was refused after the training."""
    text = SCRIPT.replace("    for x, y in job:", "    for epoch in range(3):\n     for x, y in enumerate(job):")
    with pytest.raises(InputError, match=r"script\.py, line 30: the loop over the job lies in another loop"):
        read_training(write(tmp_path, text), seed=3)


JOB = "with labkit.elastic(m, o, data, steps=2, batch=8) as job: [job.step(m(x).mean()) for x, y in job]"
TWICE = {
    "behind the first": (f"{JOB}\n{JOB}", 6),
    "in a loop": (f"for fold in range(3):\n    {JOB}", 5),
    "in a function that is called again": (f"def fit():\n    {JOB}\nfit()\nfit()", 8),
    "in a function that is called in a loop": (f"def fit():\n    {JOB}\nfor _ in 'ab':\n    fit()", 7),
    "in another branch": (f"if data:\n    {JOB}\nelse:\n    {JOB}", 0),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_second_job_of_a_script_is_refused_before_the_first_one_trains(name: str, tmp_path: Path) -> None:
    """Alone, by python, a script may have several."""
    head = "import torch, labkit\nm = torch.nn.Linear(2, 1)\no = torch.optim.SGD(m.parameters(), lr=0.1)\n"
    text, line = TWICE[name]
    script = tmp_path / "mine.py"
    script.write_text(f"{head}data = torch.ones(8, 2), torch.ones(8, 1)\n{text}")
    exec(compile(script.read_text(), script, "exec"), {"__name__": "mine"})
    if line:
        with pytest.raises(
            InputError, match=rf"mine\.py, line {line}: another labkit\.elastic.*expected one in a script"
        ):
            read_training(script, seed=0)
    else:
        assert read_training(script, seed=0).options["steps"] == 2


def test_synchronized_statistics_of_several_shards_are_refused(tmp_path: Path) -> None:
    own = read_training(write(tmp_path, SCRIPT.replace("nn.BatchNorm1d", "nn.SyncBatchNorm")), seed=3)
    with pytest.raises(InputError, match=r"the model has SyncBatchNorm, and 4 shards: .*Expected shards=1"):
        own.start(workers=1, servers=1)


def test_what_a_script_can_do_once_alone_is_refused_before_workers_fail_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = write(tmp_path, f"import os{SCRIPT}".replace('print("before', "os.mkdir('out')\nprint(\"before"))
    own = read_training(script, seed=3)
    with pytest.raises(InputError, match=r"script\.py, line \d+: FileExistsError.*exist_ok=True.*job\.starting"):
        own.start(workers=1, servers=1)


def test_a_generator_of_a_module_beside_the_script_is_named(tmp_path: Path) -> None:
    """The script is run anew in each process: nothing of it is pickled, and the reason is another one."""
    text = SCRIPT.replace("import width", "import rng, width").replace("model(x)", "model(x + rng.normal())")
    script = write(tmp_path, text)
    (tmp_path / "beside_the_loop.py").write_text("import numpy as np\nwidth, rng = 16, np.random.default_rng(0)\n")
    own = read_training(script, seed=3)
    with pytest.raises(InputError, match=r"gradient .* the second time: what beside_the_loop\.rng, rng counts"):
        own.start(workers=1, servers=1)


def test_a_loop_that_is_used_wrongly_is_refused_at_its_line() -> None:
    with loop(batch=8, shards=2) as job, pytest.raises(InputError, match=r"at update 0 without job\.step\(loss\)"):
        for _ in job:
            pass
    with pytest.raises(InputError, match="a second loop over the same job"):
        iter(job)
    with pytest.raises(InputError, match="once for each batch"):
        job.step(torch.zeros(()))
    with pytest.raises(InputError, match="validate= needs processes"), loop(batch=8, validate=1) as other:
        next(iter(other))


def clips(parts: dict[str, Any]) -> None:
    nn.utils.clip_grad_norm_(parts["model"].parameters(), 1.0)


def averages(parts: dict[str, Any]) -> None:
    parts["average"].update_parameters(parts["model"])


def averages_by_hand(parts: dict[str, Any]) -> None:
    for name, p in parts["model"].named_parameters():
        parts["shadow"][name] = 0.9 * parts["shadow"][name] + 0.1 * p.detach()


class Average(nn.Module):
    """Averages weights in tensors of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        self.shadow = {name: 0.9 * self.shadow[name] + 0.1 * p.detach() for name, p in model.named_parameters()}


class Growing(torch.utils.data.TensorDataset):
    """Samples by epoch, with negatives that are drawn anew."""

    def __init__(self) -> None:
        super().__init__(torch.ones(8, 2), torch.zeros(8, 1))
        self.epochs: list[int] = []
        self.noise, self.negatives = 0.0, torch.zeros(1)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)
        self.negatives = torch.rand(1)


def adds_a_group(parts: dict[str, Any]) -> None:
    parts["optimizer"].add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def hooks(parts: dict[str, Any]) -> None:
    parts["model"].weight.register_hook(lambda gradient: 2 * gradient)


def adds_noise(parts: dict[str, Any]) -> None:
    for p in parts["model"].parameters():
        if p.grad is not None:
            p.grad.add_(torch.randn_like(p))


BODIES: dict[str, tuple[Any, str]] = {
    "clips": (clips, r"uses gradients of the model \(.*norm.*clip_norm="),
    "steps": (lambda parts: parts["optimizer"].step(), r"steps an optimizer \(SGD\): .*optimizer\.step and"),
    "steps another optimizer": (lambda parts: parts["beside"].step(), r"steps an optimizer \(Adam\): .* in a group"),
    "computes gradients": (lambda parts: parts["model"](torch.ones(1, 2)).sum().backward(), "computes a gradient of"),
    "steps a scheduler": (lambda parts: parts["scheduler"].step(), r"changes .*\['lr'\] \(0.1, then 0.05\): servers"),
    "sets a rate": (lambda parts: parts["optimizer"].param_groups[0].update(lr=0.3), r"'lr'\] \(0.1, then 0.3\)"),
    "averages weights": (averages, "changes parts.*average.*module.weight.*each worker would have its own"),
    "averages weights by hand": (averages_by_hand, r"changes .*\['shadow'\]\['weight'\].*in a hook"),
    "averages weights in a module": (
        lambda parts: parts["shadows"].update(parts["model"]), r"changes .*\['shadows'\]\.shadow\['weight'\].*in a hook"
    ),
    "trains another model": (
        lambda parts: parts["other"].weight.data.add_(1), r"changes .*\['other'\].weight.*ModuleDict"
    ),
    "validates in between": (
        lambda parts: parts["model"].eval(), r"update \d+: .* the model with training=False.*validate=Validation"
    ),
    "steps twice": (lambda parts: parts["job"].step(torch.ones(())), r"once for each batch.*job\.update % 2"),
    "adds a group": (adds_a_group, r"changes optimizer\.param_groups \(1 groups, then 2 groups\)"),
    "adds a hook": (hooks, "adds or removes a hook of the model"),
    "adds noise to gradients": (adds_noise, r"uses gradients of the model \(add_"),
    "changes its samples": (lambda parts: setattr(parts["data"], "noise", 0.2), r"dataset\.noise: .* set_epoch"),
    "draws its samples anew": (lambda parts: parts["data"].set_epoch(0), r"changes dataset\.(epochs|negatives): "),
    "evaluates a part": (lambda parts: parts["model"].part.eval(), "leaves part with training=False"),
    "scales its loss": (lambda parts: parts["scaler"].scale(torch.ones(())), "multiplied by a GradScaler"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler")
@pytest.mark.parametrize("before", [0, 1, 40], ids=["at first", "later", "after many"])
@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_does_the_work_of_servers_is_refused(name: str, before: int) -> None:
    """In a job it would do so in each worker, for each shard, without effect or with a wrong one.

    Many do so from a later update on: clip after the warm-up, average at the end, step a scheduler by the epoch.
    """
    model = nn.Linear(2, 1)
    model.part = nn.Dropout(0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts: dict[str, Any] = {
        "model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        "average": torch.optim.swa_utils.AveragedModel(model), "other": nn.Linear(2, 1),
        "shadows": Average(model), "shadow": {name: p.detach().clone() for name, p in model.named_parameters()},
        "beside": torch.optim.Adam([nn.Parameter(torch.zeros(1))]), "scaler": torch.amp.GradScaler("cpu"),
    }  # fmt: skip
    what, why = BODIES[name]
    parts["data"] = data = Growing()
    with labkit.elastic(model, optimizer, data, batch=8, shards=2, steps=30) as job:
        parts["job"] = job

        def train() -> None:
            for n, (x, y) in enumerate(job):
                job.step(nn.functional.mse_loss(model(x), y))
                if n >= before:
                    what(parts)

        with pytest.raises(ChangedError, match=why):
            train()
        assert data.epochs[: job.epoch + 1] == list(range(job.epoch + 1)), "each one once, in their order"


@pytest.mark.parametrize("before", [0, 40, 58], ids=["at first", "between two looks", "in the last update"])
@pytest.mark.parametrize(
    ("average", "update", "name"),
    [
        (
            "[0.0 * p for p in model.parameters()]",
            "[0.9 * a + 0.1 * p for a, p in zip(w, model.parameters())]",
            r"w\[0\]",
        ),
        ("None", "model.weight.data if w is None else 0.9 * w + 0.1 * model.weight.data", "w"),
        ("{}", "{name: w.get(name, 0) + p.data for name, p in model.named_parameters()}", r"w\['weight'\]"),
    ],
    ids=["a list", "a tensor", "a dict"],
)
def test_an_average_that_the_body_makes_anew_of_its_last_value_is_refused(
    average: str, update: str, name: str, before: int, tmp_path: Path
) -> None:
    """What is made anew without its last value is let be: here `x`, which has the shape of the weights, and `best`."""
    lines = (
        "import torch, labkit", "model, x, best = torch.nn.Linear(2, 4), torch.ones(4, 2), None", f"w = {average}",
        "optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), (torch.ones(16, 2), torch.ones(16, 4))",
        "with labkit.elastic(model, optimizer, data, batch=8, shards=2, steps=30) as job:",
        "    for n, (x, y) in enumerate(job):", "        h = x * x", "        job.step((model(h) - y).square().mean())",
        "        best = model.weight.detach().clone()", f"        if n >= {before}:", f"            w = {update}",
    )  # fmt: skip
    script = tmp_path / "mine.py"
    script.write_text("\n".join(lines))
    with pytest.raises(ChangedError, match=f"changes {name}, a tensor of the shape of a parameter.*in a hook"):
        exec(compile(script.read_text(), script, "exec"), {"__name__": "mine"})


def test_each_of_several_schedulers_is_looked_at() -> None:
    """Here the body steps the first one, which does not change a rate yet."""
    models = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 100) for each in optimizers]
    body = BodyCheck(models, (optimizers, schedulers), None).around()
    next(body)
    schedulers[0].last_epoch += 1
    with pytest.raises(ChangedError, match=r"changes schedulers\[0\]\.last_epoch \(0, then 1\)"):
        next(body)


def test_a_body_may_set_the_mode_that_the_model_has_and_clear_gradients_by_zeros(tmp_path: Path) -> None:
    """The proof looks at it in evaluation mode, and BatchNorm and dropout must not leave it."""
    body = "        model.train(); optimizer.zero_grad(set_to_none=False)\n        out = model(x)\n"
    own = read_training(write(tmp_path, SCRIPT.replace("        out = model(x)\n", body)), seed=3)
    with own.start(workers=1, servers=1, steps=2) as job:
        told = " ".join(event["what"] for event in job.wait().events if event["event"] == "told")
    assert "the mean of 4 shards of 8 samples has the gradient of their batch" in told


def test_a_state_of_the_loop_of_ones_own_is_told_also_if_it_begins_later(capsys: pytest.CaptureFixture[str]) -> None:
    best, steps, generator, state = None, [], torch.Generator(), torch.zeros(3)
    with loop(batch=8, shards=2, steps=4) as job:
        for number, (x, y) in enumerate(job):
            if job.update > 1:
                x = x + torch.rand(2, generator=generator)
                steps.append(number)
            job.step(nn.functional.mse_loss(job.model(x), y))
            best = {name: p.clone() for name, p in job.model.state_dict().items()}
            state = state + 1
    assert best is not None
    err = capsys.readouterr().err
    for names in ("state, best", "number", "steps, generator"):
        assert err.count(f"the body of the loop changes {names}: each worker would have its own") == 1, err


def test_what_a_body_changes_between_two_looks_is_found_at_the_next_one(capsys: pytest.CaptureFixture[str]) -> None:
    """After update 16 the body is looked at with update 21: a target network, a temperature."""

    def with_a_target() -> None:
        target = nn.Linear(2, 1)
        with loop(steps=30, shards=1, batch=4) as job:
            for x, _ in job:
                if job.update == 18:
                    target.load_state_dict(job.model.state_dict())
                job.step((job.model(x) - target(x).detach()).square().mean())

    with pytest.raises(ChangedError, match=r"update 21: the body of the loop changes target\.weight"):
        with_a_target()
    with loop(steps=30, shards=1, batch=4) as job:
        for x, _ in job:
            job.model.temperature = 1.0 if job.update < 18 else 0.5
            job.step(job.model(x).mean())
    assert "the body of the loop changes model.temperature" in capsys.readouterr().err


def test_a_model_that_is_in_evaluation_mode_before_the_loop_stays_so_alone_too() -> None:
    with loop(batch=8, shards=1) as job:
        job.model.eval()
        for x, y in job:
            assert not job.model.training
            job.step(nn.functional.mse_loss(job.model(x), y))


def test_a_body_may_clear_gradients_and_what_it_counts_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 1)
    optimizer, total, seen = torch.optim.SGD(model.parameters(), lr=0.1), 0.0, torch.zeros(())
    samples = torch.ones(8, 2), torch.zeros(8, 1)
    with labkit.elastic(model, optimizer, samples, batch=8, shards=2, steps=2) as job:
        for x, y in job:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            job.step(loss)
            total += loss.item()
            seen += len(x)
    assert (
        capsys.readouterr().err.count("the body of the loop changes total, seen: each worker would have its own") == 1
    )


def test_a_job_refuses_the_body_of_its_script_before_the_first_step(tmp_path: Path) -> None:
    step = "job.step(loss, accuracy=(out.argmax(1) == y).float().mean())"
    own = read_training(write(tmp_path, SCRIPT.replace(step, f"{step}; optimizer.param_groups[0]['lr'] = 1.0")), seed=3)
    with pytest.raises(InputError, match=r"changes optimizer.param_groups\[0\]\['lr'\] \(0.01, then 1.0\)"):
        own.start(workers=1, servers=1)
    count = SCRIPT.replace(step, f"{step}; n += 1").replace("with labkit", "n = 0\nwith labkit")
    with read_training(write(tmp_path, count), seed=3).start(workers=1, servers=1, steps=1) as job:
        told = [event["what"] for event in job.wait().events if event["event"] == "told"]
    assert "n changes" in " ".join(told)


def test_a_script_alone_has_the_precision_of_its_job() -> None:
    with loop(batch=8, precision="bf16") as job:
        for x, y in job:
            out = job.model(x)
            assert out.dtype == torch.bfloat16
            job.step(nn.functional.mse_loss(out.float(), y))
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_a_compiled_model_has_the_numbers_of_a_plain_one_in_a_loop() -> None:
    """Its compiler looks at gradients, which are hidden from the body of a loop."""
    made = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model: Any = nn.Linear(2, 1)
        model = torch.compile(model, backend="eager") if compiled else model
        samples = torch.ones(8, 2), torch.zeros(8, 1)
        with labkit.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), samples, batch=8, steps=3) as job:
            for x, y in job:
                job.step(nn.functional.mse_loss(model(x), y))
        made.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("n_processes", [0, 1])
def test_each_process_that_loads_calls_worker_init_fn_once_where_torch_would(n_processes: int) -> None:
    """Alone this is the script's own process; a forked loader and a worker that unpickles its data call it, too."""
    data = Growing()

    def init(_: int) -> None:
        get_worker_info().dataset.epochs.append(torch.randint(100, (1,)).item())

    loader = DataLoader(data, batch_size=4, num_workers=n_processes, worker_init_fn=init)
    loaded = Loading.of(loader, batch=None, shuffle=True, loaders=0, default=1).data
    before = torch.random.get_rng_state()
    for _ in range(2):
        loaded.fetch([0, 1])
    assert len(data.epochs) == n_processes
    assert torch.equal(torch.random.get_rng_state(), before), "what it draws has no effect"
    there = cloudpickle.loads(cloudpickle.dumps(loaded))
    there.fetch([0, 1])
    assert len(there.dataset.epochs) == 2 * n_processes
    assert with_batch_size(loader, 2).worker_init_fn is init, "a training that configures itself sets its batch"


def test_epochs_are_counted_in_updates() -> None:
    assert loop(steps=None, epochs=3, batch=4).steps == 6


def test_epochs_of_a_loader_that_drops_its_last_batch_are_as_many_updates_as_it_has_batches() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(100, 2), torch.zeros(100, 1))
    model = nn.Linear(2, 1)
    for drops, updates in ((True, 24), (False, 25)):
        loader = torch.utils.data.DataLoader(data, batch_size=32, drop_last=drops)
        made = labkit.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), loader, epochs=8, shards=2)
        assert made.steps == updates


def test_a_batch_that_shards_do_not_divide_is_refused_alone_too() -> None:
    with pytest.raises(InputError, match="a batch of 20 samples cannot be cut into 8 equal logical shards"):
        next(iter(loop(batch=20, shards=8)))


def test_a_script_that_ends_by_sys_exit_without_an_error_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the script saves
    training = read_training(write(tmp_path, SCRIPT + "import sys\nsys.exit(0)\n"), seed=3)
    training.finish(training.start(steps=2, workers=1, servers=1).wait())
    failing = read_training(write(tmp_path, SCRIPT + "import sys\nsys.exit('no')\n"), seed=3)
    with pytest.raises(InputError, match=r"after the training, .*SystemExit: no"):
        failing.finish(failing.start(steps=2, workers=1, servers=1).wait())


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("        out = model(x)\n", "        break\n", "ended at update 0, by break or return"),
        ("generator=torch.Generator().manual_seed(0)", "generator=unseeded()", "has other samples in this process"),
    ],
)
def test_what_only_workers_can_see_ends_the_job_with_its_reason(old: str, new: str, what: str, tmp_path: Path) -> None:
    text = SCRIPT.replace(old, new).replace(
        "x = torch", "def unseeded():\n    g = torch.Generator()\n    g.seed()\n    return g\n\nx = torch", 1
    )  # fmt: skip
    own = read_training(write(tmp_path, text), seed=3)
    with pytest.raises(JobError, match=what), own.start(workers=1, servers=1, proof="off") as job:
        job.wait()
