"""The recorded schedule is run to the second, and is what simulated schedulers are measured by."""

import json

import numpy as np
import pytest

import labkit
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.results.calibration import calibration
from labkit.topology import no_network
from labkit.topology.servers import Server
from labkit.workloads.readers import ledgered, mapped, read
from labkit.workloads.readers.mapping import keep
from tests.command import labkit as command

CLUSTER = no_network(2, servers=Server("four", ((4, 16, 64),)))


def recorded(start_s, *, gpus=4, hosts="", duration_s=100.0, arrival_s=None, **columns) -> Jobs:
    """Return jobs that were recorded to start at some moments."""
    arrivals = np.zeros(len(start_s)) if arrival_s is None else arrival_s
    return Jobs.of(arrival_s=arrivals, total_steps=duration_s, duration_s=duration_s, n_workers=gpus,
                   recorded_start_s=start_s, recorded_hosts=hosts, **columns)  # fmt: skip


def test_jobs_start_when_and_where_they_were_recorded_to() -> None:
    jobs = recorded([0.0, 7.0, 107.0, 1e6 + 0.25], hosts=["m1", "m0", "m0", "m[0-1]"])
    record = labkit.simulate(jobs, scheduler="recorded", cluster=CLUSTER)
    assert record.table["first_start_s"].tolist() == [0.0, 7.0, 107.0, 1e6 + 0.25]
    placed = record.events[record.events["kind"] == labkit.core.events.Kind.PLACED]
    machine = CLUSTER.group_machine[placed["group"]]
    assert [machine[placed["job"] == job].tolist() for job in range(3)] == [[1], [0], [0]]


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
def test_slices_of_one_gpu_run_beside_each_other_as_recorded(tmp_path) -> None:
    rows = "JobID|Submit|Start|End|Elapsed|State|AllocTRES|NodeList\n" + "".join(
        f"{i}|2024-03-01T00:0{i}:00|2024-03-01T00:0{i}:00|2024-03-01T0{hour}:0{i}:00|0{hour}:00:00|COMPLETED|"
        f"cpu=1,gres/gpu:a100_{profile}=1,gres/gpu=1|g1\n"
        for i, profile, hour in ((1, "3g.20gb", 1), (2, "3g.20gb", 1), (3, "1g.5gb", 2))
    )
    (tmp_path / "export.txt").write_text(rows)
    one = no_network(1, servers=Server("one", ((1, 16, 64),), "a100"))
    jobs = read(tmp_path / "export.txt")
    record = labkit.simulate(jobs, scheduler="recorded", cluster=one)
    assert record.table["first_start_s"].tolist() == jobs.recorded_start_s.tolist() == [0, 60, 120]
    assert "overfills" not in " ".join(calibration([record, labkit.simulate(jobs, scheduler="fifo", cluster=one)]))


def test_overheads_limits_and_rules_do_not_touch_the_record() -> None:
    jobs = recorded([50.0, 60.0], after=["", "0"], begin_s=[500.0, np.nan], user="ada")
    record = labkit.simulate(jobs, scheduler="recorded", cluster=CLUSTER, start_s=30, quotas="ada=4")
    assert record.table["first_start_s"].tolist() == [50, 60]
    assert record.table["completion_s"].tolist() == pytest.approx([150, 160])


def test_what_the_machines_cannot_hold_is_told_with_counts() -> None:
    jobs = recorded([0.0, 0.0, 0.0], hosts=["m0", "m0", "x9"])
    runs = [labkit.simulate(jobs, scheduler=name, cluster=CLUSTER) for name in ("recorded", "fifo")]
    said = calibration(runs)
    assert said[0].startswith("Recorded: mean wait 0")
    assert "The record overfills" in said[-1]
    assert "1 of 3 jobs start later than recorded, by 100 s on average (0.111111 GPU-hours)" in said[-1].replace(
        "100.0 s", "100 s"
    )


SWF = """; Version: 2
1 0 5 100 4 -1 -1 4 3600 -1 1 7 1 1 1 1 -1 -1
2 10 90 50 2 -1 -1 2 600 -1 1 8 1 1 1 1 -1 -1
"""
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,a,v,1,1,1,COMPLETED,2020-06-09 18:41:00,2020-06-09 18:41:05,2020-06-09 18:51:05,600,5
2,a,v,4,16,1,FAILED,2020-06-09 18:41:10,2020-06-09 18:42:40,2020-06-09 18:45:40,180,90
"""
PHILLY = [
    {"jobid": name, "vc": "v", "submitted_time": f"2017-10-07 01:00:{at}", "attempts": [
        {"start_time": f"2017-10-07 01:{start}", "end_time": "2017-10-07 01:10:00",
         "detail": [{"ip": "m1", "gpus": ["g0"]}]},
    ]} for name, at, start in (("a", "00", "00:05"), ("b", "10", "01:40"))
]  # fmt: skip
POD = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,1000,100,1,1000,,LS,Succeeded,100,900,105
b,1000,100,2,1000,,LS,Succeeded,110,900,200
"""
TABLE = "id,submit_time,start_time,end_time,num_gpus\na,1000,1005,1600,1\nb,1010,1100,1600,2\n"


def pods() -> str:
    rows = [(0, "00:00", "00:05", "m1"), (1, "00:10", "01:40", "m0")]
    return json.dumps({"apiVersion": "v1", "items": [
        {"kind": "Pod", "metadata": {"name": f"p{i}", "creationTimestamp": f"2024-03-01T08:{created}Z"},
         "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
         "status": {"phase": "Succeeded", "containerStatuses": [{"name": "c", "state": {"terminated": {
             "startedAt": f"2024-03-01T08:{start}Z", "finishedAt": "2024-03-01T09:00:00Z"}}}]}}
        for i, created, start, node in rows
    ]})  # fmt: skip


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
@pytest.mark.parametrize(
    ("name", "text", "hosts"),
    [
        ("t.swf", SWF, ["", ""]),
        ("cluster_log.csv", HELIOS, ["", ""]),
        ("cluster_job_log", json.dumps(PHILLY), ["m1", "m1"]),
        ("openb_pods.csv", POD, ["", ""]),
        ("pods.json", pods(), ["m1", "m0"]),
        ("table.csv", TABLE, ["", ""]),
    ],
)
def test_all_formats_that_tell_when_jobs_started_can_be_replayed(tmp_path, name, text, hosts) -> None:
    """In each, the first job starts 5 s after its arrival at 0, the second 90 s after its own at 10."""
    path = tmp_path / name
    path.write_text(text)
    if name == "table.csv":
        frame, separator = mapped.table(path)
        keep(mapped.proposed(frame, separator, chosen={}), path)
    jobs = read(path)
    assert jobs.recorded_start_s.tolist() == [5, 100]
    assert jobs.recorded_hosts.tolist() == hosts
    record = labkit.simulate(jobs, scheduler="recorded", cluster=CLUSTER)
    assert record.table["first_start_s"].tolist() == [5, 100]
    assert ledgered(path).zero_s >= 0


def test_the_jobs_of_alibabas_tables_of_2020_start_with_their_first_task(tmp_path) -> None:
    (tmp_path / "pai_job_table.csv").write_text("j1,i1,u1,Terminated,100.0,200.0\nj2,i2,u2,Terminated,110.0,300\n")
    (tmp_path / "pai_task_table.csv").write_text(
        "j1,worker,1.0,Terminated,105.0,190.0,600.0,10.0,100,T4\nj2,worker,1.0,Terminated,200,290.0,600.0,10.0,100,T4\n"
    )
    assert read(tmp_path / "pai_job_table.csv").recorded_start_s.tolist() == [5, 100]


def test_the_recorded_run_measures_the_others() -> None:
    jobs = recorded([0.0, 200.0], gpus=8, arrival_s=[0.0, 50.0])
    runs = [labkit.simulate(jobs, scheduler=name, cluster=CLUSTER) for name in ("recorded", "fifo")]
    said = calibration(runs)
    assert "mean wait" in said[0]
    assert "fifo simulated: mean wait 66.7% below recorded" in said[1]  # 0 and 50 s instead of 0 and 150 s
    assert calibration(runs[1:]) == []


def test_without_a_recorded_start_or_with_other_arrivals_it_is_refused_in_one_line() -> None:
    plain = Jobs.of(arrival_s=[0.0], total_steps=[10.0], duration_s=10.0)
    with pytest.raises(InputError, match="does not say when jobs started; leave it out"):
        labkit.simulate(plain, scheduler="recorded", cluster=CLUSTER)
    with pytest.raises(InputError, match="arrivals are scaled"):
        labkit.simulate(recorded([5.0]), scheduler="recorded", cluster=CLUSTER, load=2)


EXPORT = (
    "JobID|User|Partition|Submit|Eligible|Start|End|Elapsed|Timelimit|State|NNodes|NodeList|AllocTRES|"
    "ReqTRES|Reason|SubmitLine|QOS|Constraints\n"
    "1|u|gpu|2024-03-04T08:00:00|2024-03-04T08:00:00|2024-03-04T08:00:00|2024-03-04T10:00:00|02:00:00|"
    "1-00:00:00|COMPLETED|1|n1|cpu=8,gres/gpu:a100=4,gres/gpu=4,node=1|cpu=8,gres/gpu=4,node=1|None|"
    "sbatch a.sh|normal|\n"
    "2|u|gpu|2024-03-04T08:00:00|2024-03-04T10:00:00|2024-03-04T10:00:05|2024-03-04T11:00:05|01:00:00|"
    "1-00:00:00|COMPLETED|2|n[1-2]|cpu=8,gres/gpu:a100=4,gres/gpu=4,node=2|cpu=8,gres/gpu=4,node=2|"
    "Dependency|sbatch -d afterok:1 b.sh|normal|\n"
    "3_0|u|gpu|2024-03-04T08:01:00|2024-03-04T08:01:00|2024-03-04T08:01:00|2024-03-04T08:31:00|00:30:00|"
    "UNLIMITED|COMPLETED|1|n2|cpu=8,gres/gpu:a100=1,gres/gpu=1,node=1|cpu=8,gres/gpu=1,node=1|None|"
    "sbatch --array=0-2%1 c.sh|high|nvlink\n"
    "3_1|u|gpu|2024-03-04T08:01:00|2024-03-04T08:31:00|2024-03-04T08:31:01|2024-03-04T09:01:01|00:30:00|"
    "UNLIMITED|COMPLETED|1|n2|cpu=8,gres/gpu:a100=1,gres/gpu=1,node=1|cpu=8,gres/gpu=1,node=1|"
    "JobArrayTaskLimit|sbatch --array=0-2%1 c.sh|high|nvlink\n"
    "4|u|gpu|2024-03-04T08:01:00|2024-03-04T08:21:00|2024-03-04T08:21:00|2024-03-04T08:31:00|00:10:00|"
    "00:20:00|COMPLETED|1|n2|cpu=8,gres/gpu:a100=1,gres/gpu=1,node=1|cpu=8,gres/gpu=1,node=1|BeginTime|"
    "sbatch --begin=08:21 --licenses=x:1 d.sh|normal|\n"
)


def test_an_export_tells_the_rules_of_its_jobs(tmp_path) -> None:
    file = tmp_path / "export.txt"
    file.write_text(EXPORT, encoding="utf-8")
    jobs = read(file)
    by_id = {job: i for i, job in enumerate(jobs.id)}
    at = [by_id[job] for job in ("1", "2", "3_0", "3_1", "4")]
    assert jobs.partitions == ("gpu",)
    assert jobs.after[at].tolist() == ["", "1", "", "", ""]
    assert jobs.array[at].tolist() == ["", "", "3", "3", ""]
    assert jobs.at_most[at].tolist() == [0, 0, 1, 1, 0]
    np.testing.assert_array_equal(jobs.begin_s[at], [np.nan, np.nan, np.nan, np.nan, 1260])
    np.testing.assert_array_equal(jobs.limit_s[at], [86400, 86400, np.nan, np.nan, 1200])
    assert jobs.nodes[at].tolist() == [1, 2, 1, 1, 1]
    assert jobs.constraint[at].tolist() == ["", "", "nvlink", "nvlink", ""]
    assert jobs.recorded_start_s[at].tolist() == [0, 7205, 60, 1861, 1260]
    assert jobs.recorded_hosts[at].tolist() == ["n1", "n[1-2]", "n2", "n2", "n2"]
    assert any("a rule that is not kept: licenses: 1 of 5 jobs" in note for note in jobs.notes)


HOSTS = """[[hosts]]
name = "n[1-2]"
gpus = 4
cpus = 64
memory_gb = 512
device_type = "a100"
features = ["nvlink"]

[partitions]
gpu = ["n[1-2]"]
"""


def test_replay_prints_the_recorded_row_and_how_far_others_are(tmp_path) -> None:
    (tmp_path / "export.txt").write_text(EXPORT, encoding="utf-8")
    (tmp_path / "hosts.toml").write_text(HOSTS, encoding="utf-8")
    done = command("replay", "export.txt", "--cluster", "hosts.toml", "--schedulers", "easy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "recorded" in text
    assert "Recorded: mean wait" in text
    assert "easy simulated: mean wait" in text
    assert "5 of 5 jobs are kept to the hosts of their partition or constraint" in text
