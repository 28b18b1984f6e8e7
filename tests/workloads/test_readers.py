"""Readers: real files against counts of their own, and faults told with file, line, column and remedy."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import Counter
from datetime import datetime

import numpy as np
import pytest

from labkit.core.errors import InputError, LabkitError, TraceError
from labkit.core.resources import CPUS, GPUS, MEMORY_GB
from labkit.workloads.gavel import Throughputs
from labkit.workloads.readers import (
    FORMATS,
    read,
    read_alibaba_2020,
    read_alibaba_2023,
    read_google_2011,
    read_helios,
    read_philly_csv,
    sniff,
)


def put(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


# Gavel


@pytest.mark.parametrize(("name", "n"), [("max_min_fairness", 96), ("small_test", 20), ("artifact_evaluation", 15)])
def test_gavels_traces_keep_ids_models_steps_gangs_and_weights(shared_data, name, n):
    path = shared_data(f"gavel/traces/{name}.trace")
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    jobs = read(path)
    assert len(jobs) == len(rows) == n
    assert jobs.id.tolist() == [str(i) for i in range(n)]
    assert jobs.model_names().tolist() == [row[0] for row in rows]
    assert jobs.total_steps.tolist() == [float(row[5]) for row in rows]
    assert jobs.n_workers.tolist() == [int(row[6]) for row in rows]
    assert jobs.weight.tolist() == [float(row[7]) for row in rows]
    assert np.isnan(jobs.slo_s).all()
    assert jobs.arrival_s.tolist() == [float(row[9]) for row in rows]
    assert jobs.n_ps.sum() == 0
    assert jobs.gpus.tolist() == jobs.n_workers.tolist()


def test_a_gavel_job_is_declared_to_take_its_steps_over_the_throughput_on_v100(shared_data):
    path = shared_data("gavel/traces/small_test.trace")
    jobs = read(path)
    table = Throughputs.published()
    rate = table.steps_per_s(jobs.model_names().tolist(), n_gpus=jobs.n_workers, device_types=("v100",), strict=True)
    assert jobs.duration_s == pytest.approx(jobs.total_steps / rate[:, 0])


@pytest.mark.parametrize(("name", "n"), [("2869ce", 533), ("0e4a51", 1181), ("51b7ef", 18)])
def test_the_older_seven_columns_are_read_with_arrival_before_scale_factor(shared_data, name, n):
    path = shared_data(f"philly/{name}.trace")
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    jobs = read(path)
    assert sniff(path) == "gavel-old"
    assert len(jobs) == n
    assert Counter(jobs.n_workers.tolist()) == Counter(int(row[6]) for row in rows)
    assert jobs.arrival_s.tolist() == [float(row[5]) for row in rows]
    assert np.isfinite(jobs.duration_s).all()


def test_shockwaves_jobs_have_their_own_durations_and_a_note_counts_those_that_change(tmp_path):
    path = tmp_path / "shockwave.trace"
    path.write_text("A3C\tc\td\t-n\t0\t100\t1\tgns\t2\t-1\t50\t9\nA3C\tc\td\t-n\t0\t90\t2\tstatic\t5\t1.5\t40\t7\n")
    jobs = read(path)
    assert sniff(path) == "shockwave"
    assert (jobs.arrival_s.tolist(), jobs.duration_s.tolist()) == ([7, 9], [40, 50])
    assert (jobs.weight.tolist(), jobs.slo_s[0]) == ([5, 2], pytest.approx(60))
    assert np.isnan(jobs.slo_s[1])
    assert any("1 of 2 jobs change their batch size" in note for note in jobs.notes)
    path.write_text(path.read_text().replace("gns", "grows"))
    with pytest.raises(TraceError, match="grows"):
        read(path)


LINE = "A3C\tcmd\tdir\t-n\t0\t100\t1\t1\t-1.0\t0\n"


def test_a_positive_slo_is_a_multiple_of_the_duration(tmp_path):
    path = put(tmp_path, "a.trace", LINE + LINE.replace("-1.0", "1.5"))
    jobs = read(path)
    assert np.isnan(jobs.slo_s[0])
    assert jobs.slo_s[1] == pytest.approx(1.5 * jobs.duration_s[1])


def test_weights_and_slos_follow_their_jobs_when_arrivals_are_out_of_order(tmp_path):
    late = LINE.replace("\t1\t-1.0\t0", "\t7\t2.0\t50")
    jobs = read(put(tmp_path, "a.trace", late + LINE))
    assert (jobs.id.tolist(), jobs.weight.tolist()) == (["1", "0"], [1.0, 7.0])
    assert np.isnan(jobs.slo_s).tolist() == [True, False]


def test_every_fault_of_a_gavel_trace_is_told_at_once_with_line_and_column(tmp_path):
    bad = [
        LINE.replace("A3C", "A4C"),
        LINE.replace("\t100\t", "\tnan\t"),
        "\n",
        LINE.replace("\t100\t1\t", "\t100\t0\t"),
        LINE.replace("\t0\n", "\t-5\n"),
        LINE.replace("-1.0", "0"),
    ]
    with pytest.raises(TraceError) as told:
        read(put(tmp_path, "a.trace", "".join(bad)))
    message = str(told.value)
    assert "a.trace: 5 faults: line 1: job_type is 'A4C'" in message
    assert "'A3C'" in message
    assert "line 2: total_steps" in message
    assert "line 4: scale_factor is '0'; expected a whole number >= 1" in message
    assert "line 5: arrival_time is '-5'" in message
    assert "line 6: SLO is '0'" in message
    assert "\n" not in message


def test_lines_with_a_wrong_number_of_cells_are_named(tmp_path):
    with pytest.raises(TraceError, match="line 2: 3 cells; expected 10"):
        read(put(tmp_path, "a.trace", LINE + "a\tb\tc\n" + LINE))


# Philly


def test_the_82247_jobs_of_the_philly_csv(shared_data):
    path = shared_data("philly/philly.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    jobs = read(path)
    assert len(jobs) == len(rows) == 82247
    assert Counter(jobs.n_workers.tolist()) == Counter(int(row["num_gpus"]) for row in rows)
    assert Counter(np.array(jobs.users)[jobs.user].tolist()) == Counter(row["cluster"] for row in rows)
    assert jobs.duration_s.sum() == sum(float(row["duration"]) for row in rows)
    stamps = sorted(datetime.fromisoformat(row["timestamp"]) for row in rows)
    assert jobs.arrival_s.tolist() == [(stamp - stamps[0]).total_seconds() for stamp in stamps]
    assert (jobs.gpus == jobs.n_workers).all()


PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"


@pytest.mark.parametrize("name", ["00", "007", "1e5", "7f04ca", "9e9999", "0x10"])
def test_names_that_look_like_numbers_stay_as_they_are(tmp_path, name):
    assert read_philly_csv(put(tmp_path, "p.csv", PHILLY.replace("11cb48", name))).users == (name,)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2017-10-09 07:01:55", "yesterday", "line 2: timestamp is 'yesterday'; expected a time like"),
        ("66.0,1,", "-66.0,1,", "line 2: duration is '-66'; expected a number > 0"),
        ("66.0,1,", ",1,", "line 2: duration is missing; expected a number > 0"),
        (",1,66", ",1.5,66", "line 2: num_gpus is '1.5'; expected a whole number >= 1 and <= 100000"),
        (",11cb48", ",", "line 2: cluster is missing; expected a name"),
        ("duration,", "length,", "line 1: column duration is missing"),
        ("2017-10-09 07:01:55,66.0,1,66.0,11cb48\n", "", "no jobs"),
        (",11cb48\n", ",11cb48,9\n", "line 2: 6 cells; expected 5"),
    ],
)
def test_faults_of_a_philly_csv(tmp_path, old, new, message):
    assert old in PHILLY
    with pytest.raises(TraceError) as told:
        read_philly_csv(put(tmp_path, "p.csv", PHILLY.replace(old, new, 1)))
    assert message in str(told.value)
    assert "p.csv" in str(told.value)


def attempt(start, end, *gpus):
    return {"start_time": start, "end_time": end, "detail": [{"ip": f"m{i}", "gpus": g} for i, g in enumerate(gpus)]}


T0, T1, T2 = "2017-10-07 01:00:00", "2017-10-07 01:01:00", "2017-10-07 01:03:00"
LOG = [
    {"jobid": "b", "vc": "v1", "submitted_time": T1, "attempts": [attempt(T1, T2, ["g0"])]},
    {
        "jobid": "a",
        "vc": "v0",
        "submitted_time": T0,
        "attempts": [attempt(T0, T1, ["g0", "g1"]), attempt(T1, T2, ["g0", "g1"], ["g0", "g1"])],
    },
    {"jobid": "never placed", "vc": "v0", "submitted_time": T0, "attempts": []},
    {"jobid": "still running", "vc": "v0", "submitted_time": T0, "attempts": [attempt(T0, None, ["g0"])]},
]


def test_the_philly_log_adds_up_attempts_and_counts_jobs_that_ran_on_and_never_ran(tmp_path):
    jobs = read(put(tmp_path, "cluster_job_log", json.dumps(LOG)))
    assert jobs.id.tolist() == ["a", "still running", "b"]
    assert jobs.arrival_s.tolist() == [0, 0, 60]
    assert jobs.duration_s.tolist() == [(2 * 60 + 4 * 120) / 4, 180, 120]  # the GPU-hours of both attempts
    assert jobs.n_workers.tolist() == [4, 1, 1]
    assert jobs.users == ("v1", "v0")
    assert jobs.name == "cluster_job_log"
    assert jobs.notes == (
        "left out of 4 jobs: 1 never placed on a GPU.",
        "still ran at the end of the log, so that their durations are too short (what they had run): 1 of 3 jobs.",
        "attempts of several sizes, so that they have the size with the most GPU-hours, for as long as gives all: "
        "1 of 3 jobs.",
    )


def test_a_change_of_clocks_and_an_end_that_is_not_known_are_told_as_such(tmp_path):
    once, twice = [attempt(T1, T0, ["g"]), attempt(T1, T2, ["g"])], [attempt(T0, T1, ["g"]), attempt(T1, None, ["g"])]
    log = [
        {"jobid": "back", "status": "Pass", "submitted_time": T0, "attempts": [attempt(T2, T1, ["g0"])]},
        {"jobid": "part", "status": "Pass", "submitted_time": T0, "attempts": once},
        {"jobid": "lost", "status": "Killed", "submitted_time": T0, "attempts": [attempt(T0, None, ["g0"])]},
        {"jobid": "more", "status": "Running", "submitted_time": T0, "attempts": twice},
    ]
    jobs = read(put(tmp_path, "cluster_job_log", json.dumps(log)))
    assert dict(zip(jobs.id.tolist(), jobs.duration_s.tolist(), strict=True)) == {"part": 120, "more": 180}
    assert jobs.notes == (
        "left out of 4 jobs: 1 that end before they start (a change of clocks), 1 that ended at an unknown time.",
        "still ran at the end of the log, so that their durations are too short (what they had run): 1 of 2 jobs.",
        "an attempt that ends before it starts (a change of clocks), which is not counted: 1 of 2 jobs.",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"jobid": 1', "line 1, column 13"),
        ('{"attempts": 1}', "expected the first line of a trace"),
        ("[3]", "job 0: is 3"),
        ('[{"jobid": "x", "attempts": 3}]', "job 0 (x): attempts is 3"),
        ('[{"jobid": "x", "attempts": []}]', "job 0 (x): submitted_time is None"),
        ("[]", "no job of 0 ran"),
    ],
)
def test_faults_of_a_philly_log(tmp_path, text, message):
    with pytest.raises(TraceError) as told:
        read(put(tmp_path, "log.json", text))
    assert message in str(told.value)


# Helios

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1425511,uXBbc,vcJkd,1,1,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-10 04:55:09,36848,0
1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0
1425513,uzqls,vcpDC,0,3,1,CANCELLED,2020-06-09 18:41:28,2020-06-09 18:41:28,2020-06-17 14:15:21,675233,0
1425514,uzqls,vcpDC,2,3,1,CANCELLED,2020-06-09 18:42:28,None,2020-06-17 14:15:21,0,675233
"""


def test_helios_gpu_jobs_become_gangs_that_share_their_cores(tmp_path):
    path = put(tmp_path, "cluster_log.csv", HELIOS)
    jobs = read(path)
    assert sniff(path) == "helios"
    assert jobs.id.tolist() == ["1425511", "1425512"]
    assert jobs.arrival_s.tolist() == [0, 26]
    assert jobs.n_workers.tolist() == [1, 4]
    assert jobs.worker_demand[:, CPUS].tolist() == [1, 4]
    assert jobs.users == ("vcJkd", "vchbv")


def test_rows_of_helios_that_are_repeated_are_merged_and_others_of_one_id_refused(tmp_path):
    lines = HELIOS.splitlines(keepends=True)
    jobs = read(put(tmp_path, "cluster_log.csv", HELIOS + lines[1] + lines[3]))
    assert jobs.id.tolist() == ["1425511", "1425512"]
    assert jobs.notes == (
        "left out of 6 rows: 1 of 0 seconds, 1 without GPUs.",
        "rows that are part of the job of another one: 2 repeated, the same in every column.",
        "GPU-hours: 20.7478 in the file = 10.5122 in jobs + 10.2356 repeated, the same in every column.",
    )
    with pytest.raises(LabkitError, match=r"'1425511' occurs 2 times"):
        read(put(tmp_path, "other.csv", HELIOS + lines[1].replace("36848", "36849")))


def test_helios_cpu_jobs_come_when_asked_for(tmp_path):
    jobs = read_helios(put(tmp_path, "cluster_log.csv", HELIOS), cpu_jobs=True)
    assert len(jobs) == 3
    assert jobs.worker_demand[2].tolist() == [0, 3, 0]


# Alibaba


def test_alibabas_8152_pods_of_2023(shared_data):
    path = shared_data("alibaba/openb_pod_list_default.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8152
    ran = [
        row
        for row in rows
        if row["scheduled_time"] and row["deletion_time"] and float(row["deletion_time"]) > float(row["scheduled_time"])
    ]
    jobs = read(path)
    assert len(jobs) == len(ran) == 7255
    assert jobs.notes[0].startswith("left out of 8,152 pods: ")
    assert sum(map(int, re.findall(r"(\d+) (?:never|not|that|of 0)", jobs.notes[0]))) == 8152 - 7255
    asked = {row["name"]: row["gpu_spec"] for row in ran if int(row["num_gpu"])}
    demanded = {name: spec for name, spec in asked.items() if spec}
    assert {name: kind for name, kind in zip(jobs.id, jobs.device_type, strict=True) if kind} == demanded
    by_id = {row["name"]: row for row in ran}
    for i in range(0, len(jobs), 37):
        row = by_id[jobs.id[i]]
        n, share = int(row["num_gpu"]), int(row["gpu_milli"]) / 1000
        assert jobs.gpus[i] == pytest.approx(n * share if n == 1 else n)
        assert jobs.n_workers[i] == max(n, 1)
        assert jobs.n_workers[i] * jobs.worker_demand[i, CPUS] == pytest.approx(int(row["cpu_milli"]) / 1000)
        assert jobs.n_workers[i] * jobs.worker_demand[i, MEMORY_GB] == pytest.approx(int(row["memory_mib"]) / 1024)
        assert jobs.duration_s[i] == float(row["deletion_time"]) - float(row["scheduled_time"])


PODS_2023 = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,1000,1024,1,1000,T4,LS,Running,0,100,10
b,1000,1024,1,1000,V100M16|V100M32,LS,Running,0,100,10
c,1000,1024,1,500,,LS,Running,0,100,10
d,1000,1024,0,0,T4,BE,Running,0,100,10
e,1000,1024,1,1000,T4,LS,Failed,0,100,
f,1000,1024,1,1000,T4,LS,Running,0,,10
g,1000,1024,1,1000,T4,LS,Running,0,10,10
"""


def test_a_pods_demand_for_types_of_gpu_is_kept(tmp_path):
    jobs = read(put(tmp_path, "openb.csv", PODS_2023))
    assert jobs.device_type.tolist() == ["T4", "V100M16|V100M32", "", ""]
    assert jobs.notes == (
        "left out of 7 pods: 1 never scheduled, 1 not deleted when the file was written, 1 of 0 seconds.",
    )


def test_pods_that_never_ran_count_where_gangs_alone_do(tmp_path, shared_data):
    jobs = read(put(tmp_path, "openb.csv", PODS_2023), unscheduled=True)
    assert jobs.id.tolist() == list("abcde")
    assert jobs.duration_s.tolist() == [90, 90, 90, 90, 100]
    assert len(read(shared_data("alibaba/openb_pod_list_default.csv"), unscheduled=True)) == 8152


def test_fractions_of_a_gpu_stay_fractions(shared_data):
    jobs = read_alibaba_2023(shared_data("alibaba/openb_pod_list_default.csv"))
    shares = jobs.worker_demand[:, GPUS]
    assert ((shares > 0) & (shares < 1)).sum() > 2500
    assert shares.max() == 1


JOBS_2020 = "j1,i1,u1,Terminated,100.0,200.0\nj2,i2,u2,Failed,50.0,\nj3,i3,u1,Waiting,60.0,\n"
TASKS_2020 = """\
j1,ps,1.0,Terminated,110.0,190.0,600.0,10.0,,
j1,worker,2.0,Terminated,112.0,195.0,400.0,20.0,50.0,T4
j2,tensorflow,1.0,Failed,50.0,70.0,600.0,29.296875,100.0,MISC
j3,worker,1.0,Waiting,,,600.0,29.0,100.0,MISC
"""


def test_alibabas_jobs_of_2020_are_joined_with_their_tasks(tmp_path):
    put(tmp_path, "pai_task_table.csv", TASKS_2020)
    jobs = read(put(tmp_path, "pai_job_table.csv", JOBS_2020))
    assert jobs.id.tolist() == ["j2", "j1"]
    assert jobs.arrival_s.tolist() == [0, 50]
    assert jobs.duration_s.tolist() == pytest.approx([20, 83])  # the second's GPUs are its workers'
    assert (jobs.n_workers.tolist(), jobs.n_ps.tolist()) == ([1, 2], [0, 1])
    assert jobs.worker_demand[1].tolist() == [0.5, 4, 20]  # as in the example of the trace's own documentation
    assert jobs.ps_demand[1].tolist() == [0, 6, 10]
    assert jobs.model_names().tolist() == ["MISC", "T4"]  # what its workers got
    assert jobs.measured_on.tolist() == ["MISC", "T4"]
    assert jobs.notes == (
        "left out of 3 jobs: 1 without a task that has ended, with a number of instances.",
        "tasks that did not all run from the start to the end, so that they have all of them, for as long as gives "
        "their GPU-hours: 1 of 2 jobs.",
    )
    assert read(tmp_path).id.tolist() == jobs.id.tolist()


def test_a_missing_task_table_is_named(tmp_path):
    with pytest.raises(TraceError, match=r"pai_task_table\.csv: there is no such file"):
        read(put(tmp_path, "pai_job_table.csv", JOBS_2020))


def test_a_fault_in_either_table_of_2020_is_told(tmp_path):
    put(tmp_path, "pai_task_table.csv", TASKS_2020.replace("400.0", "many"))
    with pytest.raises(TraceError, match=r"pai_task_table\.csv: 1 fault: line 2: plan_cpu is 'many'"):
        read_alibaba_2020(put(tmp_path, "pai_job_table.csv", JOBS_2020))
    with pytest.raises(TraceError, match="line 2: job_name is 'j1'; expected a name that occurs once"):
        read_alibaba_2020(put(tmp_path, "pai_job_table.csv", JOBS_2020.replace("j2", "j1")))


# Google


def event(time_us, job, task, kind, cpu="0.25"):
    return f"{time_us},,{job},{task},,{kind},user{job},0,0,{cpu},0.5,0.01,0\n"


EVENTS = "".join(
    [
        event(600_000_000, 7, 0, 0),
        event(600_000_000, 7, 1, 0),
        event(610_000_000, 7, 0, 1),
        event(612_000_000, 7, 1, 1),
        event(700_000_000, 8, 0, 0),
        event(710_000_000, 7, 0, 4),
        event(720_000_000, 7, 1, 4),
        event(730_000_000, 8, 0, 1, cpu=""),
    ]
)


def test_google_jobs_are_put_together_from_their_task_events(tmp_path):
    path = put(tmp_path, "part-00000-of-00500.csv", EVENTS)
    jobs = read(path)
    assert jobs.notes == (
        "left out of 2 jobs: 1 that do not end in these events.",
        "requests for disk space dropped: 1 of 1 jobs.",
    )
    assert sniff(path) == "google-2011"
    assert jobs.id.tolist() == ["7"]  # job 8 has not ended
    assert (jobs.arrival_s[0], jobs.duration_s[0], jobs.n_workers[0]) == (0, 110, 2)
    assert jobs.worker_demand[0].tolist() == [0, 0.25 * 32, 0.5 * 64]


def test_google_parts_may_be_gzipped_and_come_as_a_folder(tmp_path):
    lines = EVENTS.splitlines(keepends=True)
    for i, part in enumerate((lines[:4], [*lines[4:], event(900_000_000, 8, 0, 5)])):
        (tmp_path / f"part-{i:05d}-of-00500.csv.gz").write_bytes(gzip.compress("".join(part).encode()))
    jobs = read_google_2011(tmp_path, machine_cpus=4)
    assert (jobs.id.tolist(), jobs.arrival_s.tolist()) == (["7", "8"], [0, 100])
    assert read(tmp_path).id.tolist() == jobs.id.tolist()


# Any


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty; expected a trace"),
        (b" \n\n", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00", "binary data"),
        (b"PAR1 cut off", "not a readable Parquet file"),
        (b"\x1f\x8b\x08\x00", "broken gzip file"),
        (gzip.compress(PHILLY.encode() * 50)[:-20], "broken gzip file"),
        (b"hello world\n", "line 1 is 'hello world'; expected the first line of a trace"),
        (PHILLY.encode() + b"\xff\xfe\n", "is not UTF-8 text"),
        (PHILLY.encode()[:-12], "line 2"),
    ],
)
def test_an_unreadable_file_is_one_line_with_file_expectation_and_remedy(tmp_path, content, message):
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(TraceError) as told:
        read(path)
    assert message in str(told.value)
    assert "x.bin" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_missing_file_a_strange_folder_and_an_unknown_format(tmp_path):
    with pytest.raises(TraceError, match="there is no such file"):
        read(tmp_path / "nowhere.csv")
    with pytest.raises(TraceError, match=r"a folder without pai_job_table\.csv"):
        read(tmp_path)
    with pytest.raises(InputError, match="Did you mean 'helios'"):
        read(tmp_path / "x", format="helois")


def test_a_format_may_be_named_when_the_first_line_is_broken(tmp_path):
    path = put(tmp_path, "a.trace", "A3C\n")
    with pytest.raises(TraceError, match="line 1: 1 cells; expected 10"):
        read(path, format="gavel")


def test_windows_lines_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path):
    path = tmp_path / "p.csv"
    path.write_bytes(("\ufeff" + PHILLY.replace("\n", "\r\n") + "\r\n\r\n").encode())
    assert len(read(path)) == 1


def test_many_faults_are_told_in_part_and_counted(tmp_path):
    row = PHILLY.splitlines()[1].replace("66.0,1", "x,1") + "\n"
    with pytest.raises(TraceError, match=r"p\.csv: 500 faults: line 2: .*and 480 more"):
        read(put(tmp_path, "p.csv", PHILLY.splitlines()[0] + "\n" + row * 500))


def test_every_format_has_a_reader():
    assert len(FORMATS) == 26
