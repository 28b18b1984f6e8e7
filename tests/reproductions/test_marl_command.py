"""`labkit train-policy marl --published`, and the scheduler that decides by what it writes."""

import pytest
from typer.testing import CliRunner

from labkit.cli.app import app
from labkit.core.errors import InputError
from reproductions.marl.command import published_trainer

SMALL = {"interference": "calibrated", "seed": 1}
CLUSTER, TRACE = "vl2(4, 2, per_rack=2)", "marl_jobs(load=1, per_slot=0.5, n_slots=4, n_pods=2)"


def test_networks_are_trained_and_decide(tmp_path):
    out = tmp_path / "w.safetensors"
    small = ["--cluster", CLUSTER, "--trace", TRACE]
    switches = [word for switch in ("n_jobs=6", "width=4", "n_state=8") for word in ("--set", switch)]
    command = ["train-policy", "marl", "--published", *small, "--rounds", "2", "--out", str(out), *switches]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert f"marl(published=True, weights='{out}')" in done.output
    assert len(out.with_suffix(".csv").read_text().splitlines()) == 3
    scheduler = f"marl(published=True, weights='{out}')"
    run = ["compare", TRACE, "--cluster", CLUSTER, "--interference", "calibrated", "--schedulers"]
    done = CliRunner().invoke(app, [*run, f"even_pods,{scheduler}"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"switches": ["gamma=1"]}, "unknown switch of marl --published 'gamma'"),
        ({"switches": ["level"]}, "--set level has no value; expected NAME=VALUE, e.g. level=device"),
        ({"switches": ["shared=maybe"]}, "--set shared is 'maybe'; expected True or False"),
        ({"switches": ["n_jobs=few"]}, "--set n_jobs is 'few'; expected a whole number"),
        ({"switches": ["rate=0"]}, "rate is 0.0; expected a learning rate > 0"),
        ({"switches": ["level=rack"]}, "unknown level 'rack'"),
        ({"clusters": ["fat_tree(4)", "fat_tree(4)"]}, "--cluster is given 2 times; expected one"),
        ({"traces": ["traces/demo.csv"]}, "trace traces/demo.csv is a file; expected a generator"),
        ({"options": {"n_lessons": 3}}, "--lessons is given, and MARL as published imitates no teacher"),
    ],
)
def test_bad_input_is_refused_in_one_line(changes, told):
    asked = {"clusters": [CLUSTER], "traces": [TRACE], "switches": [], "options": {}} | SMALL | changes
    with pytest.raises(InputError, match=r"\A[^\n]*\Z") as error:
        published_trainer(asked.pop("clusters"), asked.pop("traces"), **asked)
    assert told in str(error.value)
