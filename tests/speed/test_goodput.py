"""Goodput: what a batch is worth, how it is split, epochs as phases, and jobs that share machines."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from labkit import Grid, simulate, sweep
from labkit.core import InputError, Jobs
from labkit.experiment import Experiment
from labkit.experiment.inputs import Inputs
from labkit.schedulers import make
from labkit.speed.goodput import EPOCHS, Application, Goodput, in_progress, packed, read_applications, read_workload
from labkit.testing import check_speed_model
from labkit.topology import no_network
from labkit.topology.servers import Server

NODES = no_network(4, servers=Server("node", sockets=((4, 64, 512),)))


@pytest.fixture
def folder(tmp_path):
    """Return an application as files: 3 epochs, batches of 32 to 128, noise that grows fourfold each epoch."""
    place = tmp_path / "made"
    place.mkdir()
    for batch in (32, 64, 128):
        rows = [f"{1000 * (e + 1)},{1000 * (e + 1) * 32 // batch},0.5,1.0,{3 * 4**e}" for e in range(3)]
        (place / f"validation-{batch}.csv").write_text(
            "\n".join(["progress,iteration,metric,grad_sqr,grad_var", *rows])
        )
    rows = [
        f"{p},{b},{0.02 + b * 0.001 + 0.01 * (p != 1)},{0.01 * (p != 1)}"
        for p in (1, 2, 4, 44)
        for b in (8, 16, 32, 64)
    ]
    (place / "placements.csv").write_text("\n".join(["placement,local_bsz,step_time,sync_time", *rows]))
    rows = [f"{n},{4 * n},{b},{0.05 + b * 0.001},{0.03}" for n in (1, 2, 4) for b in (8, 64)]
    rows += [f"{n},{n},{b},{0.06 + b * 0.001},{0.03}" for n in (2, 4) for b in (8, 64)]
    (place / "scalability.csv").write_text("\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *rows]))
    return place


@pytest.fixture
def app(folder):
    return Application.read(folder)


def jobs_of(app, n=1, **columns):
    given = {"arrival_s": np.zeros(n), "total_steps": float(app.progress[-1]), "model": app.name, "max_workers": 16}
    return Jobs.of(**(given | {"n_workers": 1} | columns))


def test_a_batch_is_worth_the_noise_scale_over_noise_scale_plus_batch(app):
    """Pollux, eq. 7: efficiency = (noise + M0) / (noise + M), and a step of M is worth M / M0 of that."""
    noise = 3.0 * 32
    assert app.gain(128, 0) == pytest.approx((noise + 32) / (noise + 128) * 128 / 32)
    assert app.gain(32, 1) == 1.0


def test_noise_makes_large_batches_worth_more_in_later_epochs(app):
    assert app.gain(128, 0) < app.gain(128, 1) < app.gain(128, 2) < 4
    assert app.best_batch((4,), 2) >= app.best_batch((4,), 0)


def test_a_batch_that_no_gpu_holds_is_split_into_passes(app):
    assert app.split(128, 1) == (64, 1)
    assert app.split(64, 1) == (32, 1)  # one pass of one worker shows no variance of gradients
    assert app.split(32, 1) == (32, 0)
    assert app.split(128, 4) == (32, 0)


def test_step_times_are_linear_between_measured_batches_and_placements_turn(app):
    assert app.step_s((1,), 12)[0] == pytest.approx(0.032)
    assert app.step_s((4, 4), 8) == app.step_s((4, 4), 8)
    assert np.isnan(app.step_s((1,), 7)[0])
    assert packed(9) == (4, 4, 1)


@pytest.mark.parametrize("batch", [32.0, 128.0])
def test_a_job_ends_when_its_epochs_are_done_each_at_its_own_speed(app, batch):
    jobs = jobs_of(app, n_workers=4)
    speed = Goodput(jobs, NODES, applications={"made": app}, batch=np.array([batch]))
    run = simulate(jobs, cluster=NODES, speed=speed, scheduler="fifo")
    local, more = app.split(batch, 4)
    by_hand = sum(1000 / (app.gain(batch, e) / app.iteration_s((4,), local, more)) for e in range(3))
    assert run.table["jct_s"][0] == pytest.approx(by_hand)
    assert speed.durations_s()[0] == pytest.approx(by_hand)


def test_a_job_that_chooses_its_batch_is_faster_than_with_any_one_batch(app):
    jobs = jobs_of(app, n_workers=4)
    chosen, *fixed = (
        Goodput(jobs, NODES, applications={"made": app}, batch=np.array([b])).durations_s()[0]
        for b in (0.0, 32, 64, 128)
    )
    assert chosen <= min(fixed) + 1e-9


def test_preempted_in_the_midst_of_an_epoch_a_job_goes_on_from_there(app):
    jobs = jobs_of(app, 2, n_workers=16, arrival_s=[0.0, 10.0], total_steps=[3000.0, 400.0])
    speed = Goodput(jobs, NODES, applications={"made": app}, batch=np.array([128.0, 128.0]))
    alone_s = speed.durations_s()
    run = simulate(jobs, cluster=NODES, speed=speed, scheduler="srtf")
    assert run.table["n_preemptions"][0] == 1
    short_s = run.table["jct_s"][1]
    assert run.table["jct_s"][0] == pytest.approx(alone_s[0] + short_s)


def test_interference_slows_jobs_on_several_machines_that_share_one(app):
    jobs = jobs_of(app, 2, n_workers=6)
    plain, beside = (
        Goodput(jobs, NODES, applications={"made": app}, batch=np.full(2, 64.0), interference=part)
        for part in (0.0, 0.25)
    )
    session = Experiment.of(jobs, cluster=NODES, speed=plain).session(make("fifo(placer=first_fit)"))
    session.step(make("fifo(placer=first_fit)").schedule(session.snapshot()))
    running = session.ledger.book.running(np.array([0, 1], np.int32))
    assert beside.speeds(running) == pytest.approx(0.75 * plain.speeds(running))
    assert not beside.local


def test_the_model_passes_the_suite(app):
    jobs = jobs_of(app, 5, arrival_s=np.arange(5.0))
    check_speed_model(Goodput(jobs, NODES, applications={"made": app}), jobs=jobs, cluster=NODES)


def test_a_workload_reads_its_gangs_and_batches(app, tmp_path):
    (tmp_path / "w.csv").write_text("name,time,application,num_replicas,batch_size\nmade-0,5,made,4,128\n")
    jobs, batch = read_workload(tmp_path / "w.csv", {"made": app})
    assert (jobs.n_workers[0], jobs.max_workers[0], batch[0], jobs.total_steps[0]) == (4, 16, 128.0, 3000.0)
    jobs, batch = read_workload(tmp_path / "w.csv", {"made": app}, adaptive=True)
    assert (jobs.n_workers[0], batch[0]) == (1, 0.0)


@pytest.fixture
def measurements(folder, tmp_path):
    """Return a folder of all of Pollux' applications, which are alike."""
    for name in EPOCHS:
        shutil.copytree(folder, tmp_path / "traces" / name)
    return tmp_path / "traces"


@pytest.fixture
def workload(tmp_path):
    path = tmp_path / "workload-1.csv"
    rows = [f"bert-{i},{60 * i},bert,{i + 1},64" for i in range(4)] + ["ncf-0,30,ncf,4,64"]
    path.write_text("\n".join(["name,time,application,num_replicas,batch_size", *rows]))
    return path


@pytest.mark.filterwarnings("ignore:no duration in the file")
def test_a_workload_and_its_measurements_are_all_that_a_simulation_needs(measurements, workload):
    """A folder of throughputs is one of goodput; jobs train to the end of their application, and choose their batch."""
    applications = read_applications(measurements)
    run = simulate(workload, cluster=NODES, throughputs=measurements, scheduler="srtf")
    jobs, batch = in_progress(run.jobs, applications)
    assert jobs.total_steps.tolist() == [float(applications[name].progress[-1]) for name in jobs.model_names()]
    assert (jobs.n_workers.tolist(), jobs.max_workers.tolist()) == ([1, 1, 2, 3, 4], [16, 1, 16, 16, 16])
    assert batch.tolist() == [0, 128, 0, 0, 0]
    made = Goodput(jobs, NODES, applications=applications, batch=batch)
    assert (
        run.table["jct_s"].tolist()
        == simulate(jobs, cluster=NODES, speed=made, scheduler="srtf").table["jct_s"].tolist()
    )
    assert "train to the end of their application" in str(run.info.config)


@pytest.mark.filterwarnings("ignore:no duration in the file")
def test_a_sweep_takes_a_folder_of_measurements_with_it(measurements, workload):
    grid = Grid(schedulers=["srtf"], cluster="no_network(4)", trace=str(workload), throughputs=str(measurements))
    one = sweep(grid, workers=0, progress=False)
    assert one["mean_jct_s"].notna().all()
    taken = Inputs.of(grid)
    before = {file.relative_to(measurements): file.read_text() for file in measurements.glob("*/*.csv")}
    (measurements / "bert" / "placements.csv").write_text("another one")
    assert Inputs.of(grid).meanings(grid) != taken.meanings(grid)
    with taken.file(str(measurements)) as copy:
        assert {file.relative_to(copy): file.read_text() for file in copy.glob("*/*.csv")} == before


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"speed": "goodput"}, "'goodput' needs a folder of measurements, and has none; give --throughputs"),
        (
            {"speed": "goodput", "throughputs": "workload-1.csv"},
            "needs a folder of measurements, and has workload-1.csv",
        ),
        ({"throughputs": "."}, r"bert has no placements.csv, scalability.csv and validation-\*.csv"),
    ],
)
def test_what_a_simulation_of_goodput_lacks_is_told(options, told, workload, monkeypatch):
    monkeypatch.chdir(workload.parent)
    with pytest.raises(InputError, match=told):
        simulate(workload, cluster=NODES, scheduler="srtf", **options)


def test_jobs_of_which_no_goodput_was_measured_are_refused(measurements):
    with pytest.raises(InputError, match="no goodput of 'inception-bn' was measured; known applications: bert, "):
        simulate("demo", cluster="demo", throughputs=measurements, scheduler="srtf")


def test_what_is_missing_is_named(app, tmp_path):
    with pytest.raises(InputError, match=r"has no placements.csv, scalability.csv and validation-\*.csv"):
        read_applications(tmp_path)
    jobs = jobs_of(app)
    with pytest.raises(InputError, match="no goodput of 'made' was measured; known applications: none"):
        Goodput(jobs, NODES, applications={})
    with pytest.raises(InputError, match="interference is 1"):
        Goodput(jobs, NODES, applications={"made": app}, interference=1.0)
    with pytest.raises(InputError, match="a batch of 500; expected 32 to 128"):
        app.gain(500, 0)
