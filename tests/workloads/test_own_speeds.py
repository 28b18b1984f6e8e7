"""Speeds by types of one's own: relative, by model, or a stated guess; recorded seconds become steps."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.experiment import Experiment, simulate
from labkit.experiment.caveats import Caveat
from labkit.schedulers import make
from labkit.topology import build
from labkit.workloads.own_speeds import TFLOPS, guessed_speeds, in_steps, is_speeds, read_speeds

TWO = """
[[hosts]]
name = "a"
gpus = 4
cpus = 32
memory_gb = 256
device_type = "a100"

[[hosts]]
name = "v"
count = 2
gpus = 2
cpus = 32
memory_gb = 256
device_type = "v100"
"""


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "two.toml").write_text(TWO)
    return build(str(tmp_path / "two.toml"))


def put(tmp_path, text):
    (tmp_path / "speeds.csv").write_text(text)
    return tmp_path / "speeds.csv"


def recorded(**columns):
    """Return a job that took an hour on one GPU, in a trace without steps."""
    return Jobs.of(**{"arrival_s": [0.0], "total_steps": 3600.0, "duration_s": 3600.0, **columns})


def jct_s(jobs, cluster, **options):
    return simulate(jobs, cluster=cluster, scheduler="gavel_las", **options).summary["mean_jct_s"]


def test_count_stands_for_hosts_that_are_alike(cluster):
    assert cluster.machines == ("a", "v1", "v2")
    assert cluster.capacity[:, 0].sum() == 8


@pytest.mark.parametrize(
    ("measured_on", "jct"), [("v100", 1800.0), ("a100", 3600.0), ("", 1800.0), ("NVIDIA-A100-SXM4-80GB", 3600.0)]
)
def test_a_recorded_time_holds_for_the_type_on_which_it_was_measured(tmp_path, cluster, measured_on, jct):
    speeds = put(tmp_path, "type,speed\nv100,1\na100,2\n")  # v100 is named first: it stands for what is not known
    jobs = recorded(measured_on=measured_on)
    assert jct_s(jobs, cluster, throughputs=speeds) == pytest.approx(jct, rel=1e-6)


def test_a_table_by_model_and_gpus_scales_by_its_own_figures(tmp_path, cluster):
    speeds = put(tmp_path, "model,gpus,type,steps_per_s\nbert,2,v100,3\nbert,2,a100,9\n*,1,v100,5\n*,1,a100,10\n")
    bert = recorded(model=["bert"], n_workers=2, measured_on="v100")
    assert jct_s(bert, cluster, throughputs=speeds) == pytest.approx(1200, rel=1e-6)
    other = recorded(model=["mine"], measured_on="v100")  # no rows of its own: those of *
    assert jct_s(other, cluster, throughputs=speeds) == pytest.approx(1800, rel=1e-6)


def test_jobs_that_tell_steps_keep_them(tmp_path, cluster):
    speeds = put(tmp_path, "model,gpus,type,steps_per_s\nbert,1,v100,5\nbert,1,a100,10\n")
    jobs = Jobs.of(arrival_s=[0.0], total_steps=1000.0, model=["bert"])
    assert jct_s(jobs, cluster, throughputs=speeds) == pytest.approx(100)


def test_flops_are_a_guess_and_the_header_says_so(cluster):
    experiment = Experiment.of(recorded(measured_on="v100"), cluster=cluster, speed="flops")
    assert experiment.speeds.startswith("a guess: as published peak TFLOPS (a100 312, v100 125)")
    assert "hold for the type that the trace names" in experiment.speeds
    assert jct_s(recorded(measured_on="v100"), cluster, speed="flops") == pytest.approx(3600 * 125 / 312, rel=1e-6)
    assert all(value > 0 for value in TFLOPS.values())
    with pytest.raises(InputError, match=r"unknown type of GPU with published FLOPS 'x9'.*--throughputs FILE"):
        guessed_speeds(recorded(), ("x9",))


def test_a_job_runs_only_on_the_type_that_it_demands(tmp_path, cluster):
    speeds = put(tmp_path, "type,speed\nv100,1\na100,2\n")
    jobs = recorded(measured_on="v100", device_type="tesla_v100")
    assert jct_s(jobs, cluster, throughputs=speeds) == pytest.approx(3600, rel=1e-6)
    placed = simulate(jobs, cluster=cluster, scheduler="fifo")
    kinds = np.array(cluster.device_types)[cluster.group_type[placed.events["group"][placed.events["group"] >= 0]]]
    assert set(kinds) == {"v100"}


def test_a_demand_that_the_cluster_cannot_meet_is_dropped_and_told(cluster):
    with pytest.warns(Caveat, match=r"demand and two lacks: tpu \(1 of 1 jobs\); these jobs may run on any"):
        record = simulate(recorded(device_type="tpu"), cluster=cluster, scheduler="fifo")
    assert record.summary["mean_jct_s"] == 3600


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("type,speed\na100,2\na100,3\n", "line 3: a100 occurs twice"),
        ("type,speed\na100,fast\n", "line 2: a100 has the speed 'fast'; expected a name and a number > 0"),
        ("model,gpus,type,steps_per_s\nb,0,a100,2\n", "line 2: gpus is '0'; expected a whole number"),
        ("model,gpus,type,steps_per_s\nb,1,a100,-2\n", "line 2: steps_per_s is '-2'"),
        ("model,gpu,type,steps_per_s\nb,1,a100,2\n", "unknown column 'gpu'. Did you mean 'gpus'"),
        ("model,gpus,type,steps_per_s\nb,1,a100\n", "line 2: 3 cells; expected 4"),
        ("model,gpus,type,steps_per_s\nb,1,a100,2\n", r"unknown model 'job'.*or for '\*', which is all other models"),
    ],
)
def test_a_faulty_file_of_speeds_is_told_by_line(tmp_path, text, told):
    with pytest.raises(InputError, match=told):
        read_speeds(put(tmp_path, text), jobs=recorded())


def test_types_that_the_table_lacks_are_named_with_counts(tmp_path, cluster):
    (tmp_path / "relative.csv").write_text("type,speed\na100,2\nv100,1\n")
    jobs = Jobs.of(
        arrival_s=[0, 1, 2, 3], total_steps=[60] * 4, duration_s=60, measured_on=["h100", "", "h100", "v100"]
    )  # fmt: skip
    said = in_steps(jobs, read_speeds(tmp_path / "relative.csv", jobs=jobs))[1]
    assert said.endswith("or else for a100 (3 of 4 jobs: h100 2, no type 1)")


def test_a_misspelt_column_of_relative_speeds_is_told_by_its_own_format(tmp_path):
    (tmp_path / "relative.csv").write_text("type,sped\na100,2\n")
    assert is_speeds(tmp_path / "relative.csv")
    with pytest.raises(InputError, match=r"unknown column 'sped'\. Did you mean 'speed'\?"):
        read_speeds(tmp_path / "relative.csv", jobs=Jobs.of(arrival_s=[0], total_steps=[60]))


def test_a_type_of_the_cluster_that_nobody_has_heard_of_is_told_where_speeds_are_recorded(tmp_path):
    (tmp_path / "odd.toml").write_text(TWO.replace('"v100"', '"t5"'))
    odd = build(str(tmp_path / "odd.toml"))
    with pytest.warns(Caveat, match=r"lists of GPUs name: t5 \(near: t4\); check"):
        simulate(recorded(), cluster=odd, scheduler="fifo")
    known = Experiment.of(recorded(device_type="t5"), cluster=odd)
    assert known.config(make("fifo"))["speeds"].startswith("the trace's own durations")
    assert not any("t5" in note for note in known.caveats(make("fifo"), name="fifo"))
