"""Exports of one's own cluster: each row is a job or is accounted for, and what was guessed is told."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core.errors import InputError, TraceError
from labkit.core.resources import CPUS, GPUS, MEMORY_GB
from labkit.workloads import info, read
from labkit.workloads.readers import read_sacct, sniff
from labkit.workloads.readers.kubernetes import kubernetes
from labkit.workloads.readers.mapped import (
    FIELDS,
    ColumnMap,
    FieldSource,
    keep,
    mapped,
    named,
    proposed,
    sidecar,
    table,
)
from labkit.workloads.readers.sacct import gpus_of, read_tres, sacct

from .exports import PODS, SACCT, SACCT_HEADER, SACCT_JSON, SACCT_ROWS, TABLE, pod


def put(tmp_path, name, content):
    path = Path(tmp_path) / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def by_id(jobs):
    return {name: jobs[i] for i, name in enumerate(jobs.id.tolist())}


def conserved(read):
    """Tell whether jobs, rows that are part of them, and rows that were left out are all rows."""
    ledger = read.ledger
    gone = sum(ledger.left_out.values()) + sum(ledger.merged.values())
    return len(read.jobs) == ledger.n_jobs == ledger.n_rows - gone


def attempt(reading):
    """Return what is read and no refusal, or nothing and the refusal."""
    try:
        return reading(), ""
    except InputError as error:
        return None, str(error)


# Slurm


def test_a_slurm_export_gives_its_gpu_jobs_with_what_they_were_allocated(tmp_path):
    path = put(tmp_path, "export.txt", SACCT)
    assert sniff(path) == "sacct"
    jobs = read(path)
    found = by_id(jobs)
    assert list(found) == ["100", "101_1", "101_2", "104", "105"]
    assert [found[name].n_workers for name in found] == [4, 1, 1, 2, 3]
    assert jobs.duration_s.tolist() == [3600, 7200, 26 * 3600, 1800 + 7200, 3600]  # both attempts of 104
    assert jobs.arrival_s.tolist() == [0, 300, 300, 600, 41 * 60]
    assert jobs.measured_on.tolist() == ["a100", "v100", "v100", "", ""]
    assert jobs.device_type.tolist() == ["", "v100", "", "", ""]  # only what was requested is a demand
    assert jobs.gang_demand[0].tolist() == [4, 32, 256]
    assert jobs.worker_demand[1, MEMORY_GB] == pytest.approx(64000 / 1024)
    assert jobs.priority.tolist() == [100, 50, 50, 50, 50]
    assert found["100"].user == "ann"
    assert found["100"].model == "bert"


def test_each_row_of_a_slurm_export_is_told_with_its_reason(tmp_path):
    read_ = sacct(put(tmp_path, "export.txt", SACCT))
    assert conserved(read_)
    assert list(read_.ledger.left_out.values()) == [2, 2, 1]  # steps, never started, without GPUs
    assert list(read_.ledger.merged.values()) == [1, 1]  # an earlier attempt, a component
    told = "\n".join(read_.jobs.notes)
    assert "not ended when the file was written" in told
    assert "1 failed" in told
    assert "time zone" in told
    assert "note      left out of 12 rows" in info(put(tmp_path, "export.txt", SACCT))
    assert len(read_sacct(put(tmp_path, "export.txt", SACCT), cpu_jobs=True)) == 6


def test_a_requeued_job_arrives_when_it_first_did_and_a_number_used_anew_is_another_job(tmp_path):
    rows = [row for row in SACCT_ROWS if row.startswith("104")]
    anew = rows[0].replace("REQUEUED", "COMPLETED")
    assert sacct(put(tmp_path, "a", "\n".join([SACCT_HEADER, *rows]))).jobs.id.tolist() == ["104"]
    jobs = sacct(put(tmp_path, "b", "\n".join([SACCT_HEADER, anew, rows[1]]))).jobs
    assert jobs.id.tolist() == ["104", "104#2"]
    assert any("number of an earlier job" in note for note in jobs.notes)


def test_a_repeated_row_of_sacct_is_the_same_job(tmp_path):
    once = sacct(put(tmp_path, "a", SACCT)).jobs
    twice = sacct(put(tmp_path, "b", "\n".join([SACCT_HEADER, *SACCT_ROWS, *SACCT_ROWS])))
    assert twice.jobs.id.tolist() == once.id.tolist()
    assert twice.ledger.merged["repeated, the same in every column"] == 10  # two are steps of jobs


def test_sacct_json_of_either_age_says_the_same_as_its_text(tmp_path):
    path = put(tmp_path, "x.json", SACCT_JSON)
    assert sniff(path) == "sacct"
    jobs = read(path)
    assert jobs.id.tolist() == ["100", "101_7"]
    assert jobs.gang_demand[0].tolist() == [4, 32, 256]
    assert jobs.duration_s.tolist() == [3600, 7200]
    assert jobs.arrival_s.tolist() == [0, 300]
    assert jobs.measured_on.tolist() == ["a100", ""]
    assert not any("time zone" in note for note in jobs.notes)  # seconds since 1970 have none


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace("|AllocTRES|ReqTRES", "|Alloc|Req"), "column AllocTRES is missing"),
        (lambda text: text.replace("|01:00:00|", "|2 fortnights|").replace("|02:00:00|", "|x|").replace("00:30", "x"),
         "2: Elapsed is '2 fortnights'; expected a span"),
        (lambda text: text.replace("gres/gpu", "gpus:"), "2: AllocTRES is 'billing=32,cpu=32,gpus::a100"),
        (lambda text: text.replace("2024-03-01T08:", "Ystday 08:"), "2: Submit is 'Ystday 08:00:00'; expected"),
        (lambda text: text.replace("|COMPLETED|", "|COMPL|ETED|").replace("|FAILED", "|FAI|LED"),
         "line 2: 13 cells; expected 12"),
        (lambda _: "JobID           State\n------- -------\n12 COMPLETED\n", "aligned with spaces.*sacct -a -X -P"),
        (lambda _: SACCT_HEADER + "\n" + SACCT_ROWS[6], "none of 1 rows is a job with GPUs that ran.*1 without GPUs"),
    ],
)  # fmt: skip
def test_a_faulty_slurm_export_names_line_column_and_remedy(tmp_path, change, told):
    with pytest.raises(TraceError, match=told):
        read(put(tmp_path, "export.txt", change(SACCT)))


def test_times_with_an_offset_are_moments(tmp_path):
    text = SACCT.replace("2024-03-01T08:00:00", "2024-03-01T09:00:00+01:00")
    assert read(put(tmp_path, "export.txt", text)).arrival_s.tolist()[:2] == [0, 300]


def test_resources_are_read_with_their_units():
    assert read_tres("mem=1T,cpu=2") == {"mem": 1024.0, "cpu": 2.0}
    assert read_tres("cpu=two") is None
    assert gpus_of({"gres/gpu:a100": 2, "gres/gpu:v100": 1}) == (3, "a100")


# Kubernetes


def test_pods_of_a_job_are_one_gang_as_wide_as_ran_at_once(tmp_path):
    path = put(tmp_path, "pods.json", {"apiVersion": "v1", "items": PODS, "kind": "List"})
    assert sniff(path) == "kubernetes"
    read_ = kubernetes(path)
    jobs, found = read_.jobs, by_id(read_.jobs)
    assert sorted(found) == ["lab/alone", "lab/bert", "lab/mpi", "lab/retry", "lab/tf"]
    assert {name.removeprefix("lab/"): job.n_workers for name, job in found.items()} == {
        "bert": 16, "tf": 1, "retry": 1, "mpi": 2, "alone": 1,
    }  # fmt: skip
    assert found["lab/bert"].duration_s == (3600 + 3595) / 2  # its pods held their GPUs so long, on average
    assert found["lab/retry"].duration_s == 30 * 60  # both attempts, one after the other
    assert found["lab/alone"].duration_s == 40 * 60  # until the last moment in the file, 09:10
    assert found["lab/tf"].n_ps == 1
    assert found["lab/bert"].user == "team-a"
    assert found["lab/mpi"].user == "lab"
    bert, tf = jobs.id.tolist().index("lab/bert"), jobs.id.tolist().index("lab/tf")
    assert jobs.device_type[bert] == "NVIDIA-A100"
    assert jobs.priority[tf] == 7
    assert jobs.gang_demand[bert].tolist() == [16, 8, 32]
    assert conserved(read_)


def test_slices_of_gpus_are_parts_of_them(tmp_path):
    mig = pod("m", ran=("08:00:00", "09:00:00"))
    mig["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/mig-3g.20gb"] = "1"
    jobs = kubernetes(put(tmp_path, "p.json", {"apiVersion": "v1", "items": [mig]})).jobs
    assert jobs.worker_demand[0, GPUS] == pytest.approx(3 / 7)
    assert any("slices of GPUs" in note for note in jobs.notes)


def test_faulty_pods_are_named(tmp_path):
    bad = pod("bad", gpus=1, ran=("08:00:00", "09:00:00"))
    bad["metadata"]["creationTimestamp"] = "yesterday"
    with pytest.raises(TraceError, match=r"pod 2 \(bad\): metadata.creationTimestamp is 'yesterday'; expected a time"):
        kubernetes(put(tmp_path, "p.json", {"apiVersion": "v1", "items": [PODS[0], bad]}))


# Any table


def test_columns_are_proposed_by_name_and_values_and_remembered_beside_the_file(tmp_path):
    path = put(tmp_path, "jobs.csv", TABLE)
    with pytest.raises(TraceError, match="labkit traces import"):
        read(path)
    frame, separator = table(path)
    mapping = proposed(frame, separator)
    assert separator == ";"
    assert {name: source.column for name, source in mapping.sources.items()} == {
        "arrival": "submit_time", "start": "startTime", "duration": "run_time_min", "gpus": "gpu_num", "user": "owner",
        "id": "job_id", "measured_on": "gpu_type", "memory": "mem_mb",
    }  # fmt: skip
    assert mapping.sources["duration"].unit == "min"
    assert mapping.sources["memory"].unit == "mb"
    keep(mapping, path)
    assert sniff(path) == "mapped"
    jobs = read(path)
    assert jobs.id.tolist() == ["a", "b", "d"]
    assert jobs.duration_s.tolist() == [3600, 1800, 300]
    assert jobs.arrival_s.tolist() == [0, 60, 1800]
    assert jobs.n_workers.tolist() == [4, 1, 2]
    assert jobs.gang_demand[0, MEMORY_GB] == pytest.approx(16)
    assert np.isfinite(jobs.worker_demand[:, CPUS]).all()
    told = "\n".join(jobs.notes)
    assert "left out of 5 rows: 1 without a duration (never started, or not ended), 1 without GPUs." in told
    assert "no time of submission, so that they arrive when they started: 1 of 3 jobs." in told


def test_what_a_user_names_stands_and_what_is_misspelt_is_told(tmp_path):
    frame, separator = table(put(tmp_path, "jobs.csv", TABLE))
    mapping = proposed(frame, separator, chosen=named("arrival=startTime,duration=run_time_min:h"))
    assert mapping.sources["arrival"] == FieldSource("startTime", "s")
    assert mapping.sources["duration"] == FieldSource("run_time_min", "h")
    assert "start" not in mapping.sources  # a column means one thing
    for text, told in (
        ("arrivel=x", "unknown field of a trace 'arrivel'. Did you mean 'arrival'"),
        ("arrival", "expected FIELD=COLUMN"),
        ("duration=run:weeks", "unknown unit of duration 'weeks'"),
    ):
        with pytest.raises(InputError, match=re.escape(told)):
            named(text)
    with pytest.raises(InputError, match=r"unknown column 'submit'\. Did you mean 'submit_time'"):
        proposed(frame, separator, chosen=named("arrival=submit"))


def test_a_table_without_arrivals_or_durations_is_refused_with_its_columns(tmp_path):
    path = put(tmp_path, "jobs.csv", TABLE)
    with pytest.raises(InputError, match="no column shows how long jobs ran; name it: --map duration=COLUMN"):
        mapped(path, ColumnMap(";", {"arrival": FieldSource("submit_time")}))


@pytest.mark.parametrize(
    "text", ["[columns", "x = 1", '[columns]\narrivel = "a"', 'separator = ""\n[columns]\nid = "a"']
)
def test_a_broken_mapping_beside_a_file_is_told_with_the_remedy(tmp_path, text):
    path = put(tmp_path, "jobs.csv", TABLE)
    sidecar(path).write_text(text)
    with pytest.raises(TraceError, match=r"labkit\.toml.*labkit traces import"):
        read(path)


def test_milliseconds_since_1970_are_seen_by_their_size(tmp_path):
    path = put(tmp_path, "t.csv", "submitted_at,runtime,gpus\n1709280000000,60,1\n1709280005000,30,2\n")
    frame, separator = table(path)
    mapping = proposed(frame, separator)
    assert mapping.sources["arrival"].unit == "ms"
    assert mapped(path, mapping).jobs.arrival_s.tolist() == [0, 5]


# Whatever the rows, none is lost

STAMPS = st.sampled_from(["2024-03-01T08:00:00", "2024-03-01T09:30:00", "Unknown", "None", ""])
STATES = st.sampled_from(
    ["COMPLETED", "RUNNING", "PENDING", "CANCELLED by 7", "REQUEUED", "NODE_FAIL", "TIMEOUT", "odd", ""]
)
IDS = st.sampled_from(["1", "2", "2_1", "2_[3-4]", "3+0", "3+1", "1.batch", "1.extern", "2.0", "4"])
TRES = st.sampled_from(["", "cpu=4", "cpu=4,gres/gpu=2", "gres/gpu:a100=1,mem=4G", "gres/gpu=0"])
SPANS = st.sampled_from(["00:00:00", "01:00:00", "2-00:00:01", "", "12:30"])
SLURM = st.lists(st.tuples(IDS, STAMPS, STAMPS, STAMPS, SPANS, STATES, TRES, TRES), min_size=1, max_size=12)


@settings(max_examples=2 * settings().max_examples)
@given(SLURM)
def test_jobs_and_left_out_rows_of_a_slurm_export_are_all_rows(rows):
    header = "JobID|Submit|Start|End|Elapsed|State|AllocTRES|ReqTRES"
    with tempfile.TemporaryDirectory() as folder:
        path = put(folder, "x", "\n".join([header, *("|".join(row) for row in rows)]))
        for cpu_jobs in (False, True):
            read_, refusal = attempt(lambda some=cpu_jobs: sacct(path, cpu_jobs=some))
            assert "none of" in refusal if read_ is None else conserved(read_)
            assert read_ is None or read_.ledger.n_rows == len(rows)


TIMES = st.sampled_from(
    [None, ("08:00:00", None), ("08:00:00", "08:00:00"), ("08:00:00", "09:00:00"), ("08:30:00", "08:45:00")]
)
LABELS = st.sampled_from(
    [None, {"job-name": "a"}, {"ray.io/cluster": "a"}, {"volcano.sh/job-name": "b", "volcano.sh/task-spec": "ps"}]
)
OWNERS = st.sampled_from([None, ("Job", "a"), ("ReplicaSet", "r")])
PHASES = st.sampled_from(["Succeeded", "Failed", "Running", "Pending", "Unknown"])


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.tuples(LABELS, OWNERS, st.integers(0, 3), TIMES, PHASES), min_size=1, max_size=10))
def test_jobs_and_left_out_pods_are_all_pods(drawn):
    pods = [
        pod(f"p{i}", labels=labels, owner=owner, gpus=gpus, ran=ran, phase=phase)
        for i, (labels, owner, gpus, ran, phase) in enumerate(drawn)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = put(folder, "x", {"apiVersion": "v1", "items": pods})
        read_, refusal = attempt(lambda: kubernetes(path))
        assert "none of" in refusal if read_ is None else conserved(read_)
        assert read_ is None or read_.ledger.n_rows == len(pods)


CELLS = st.sampled_from(
    ["", "0", "1", "2.5", "-1", "60", "2024-03-01 08:00:00", "2024-03-01T08:00:00Z", "a100", "01:00:00"]
)


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.tuples(*[CELLS] * 5), min_size=1, max_size=8), st.sampled_from(sorted(FIELDS)))
def test_jobs_and_left_out_rows_of_a_mapped_table_are_all_rows(rows, fifth):
    names = ["arrival", "start", "end", "gpus", fifth]
    with tempfile.TemporaryDirectory() as folder:
        path = put(folder, "x.csv", "\n".join([",".join(f"c{i}" for i in range(5)), *(",".join(row) for row in rows)]))
        mapping = ColumnMap(",", {name: FieldSource(f"c{i}") for i, name in enumerate(names)})
        read_, refusal = attempt(lambda: mapped(path, mapping))
        assert str(path) in refusal if read_ is None else conserved(read_)


@settings(max_examples=4 * settings().max_examples)
@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_text_is_proposed_and_read_or_refused(text):
    with tempfile.TemporaryDirectory() as folder:
        path = put(folder, "x.csv", text)
        try:
            frame, separator = table(path)
            mapping = proposed(frame, separator)
            mapped(path, mapping)
        except InputError:
            return


# Reservations


def test_the_reservation_of_a_job_is_read_from_text_json_a_table_and_labkits_own(tmp_path):
    text = SACCT_HEADER + "|Reservation\n" + "\n".join(row + "|" + "night" * ("|bert|" in row) for row in SACCT_ROWS)
    jobs = read(put(tmp_path, "export.txt", text))
    assert dict(zip(jobs.id, jobs.reservation, strict=True))["100"] == "night"
    assert sorted(set(jobs.reservation)) == ["", "night"]
    jobs = read(put(tmp_path, "null.txt", text.replace("|\n", "|(null)\n")))
    assert sorted(set(jobs.reservation)) == ["", "night"]
    first, second = SACCT_JSON["jobs"]
    told = {**SACCT_JSON, "jobs": [{**first, "reservation": {"id": 3, "name": "night"}}, {**second, "reservation": {}}]}
    assert read(put(tmp_path, "x.json", told)).reservation.tolist() == ["night", ""]
    jobs = read(put(tmp_path, "own.csv", "arrival_s,total_steps,reservation\n0,5,night\n1,5,\n"))
    assert jobs.reservation.tolist() == ["night", ""]
    assert type(jobs).from_frame(jobs.to_frame()).reservation.tolist() == ["night", ""]
    path = put(tmp_path, "mine.csv", "submitted,runtime,gpus,reservation\n0,60,1,night\n60,60,1,\n")
    keep(proposed(*table(path)), path)
    assert read(path).reservation.tolist() == ["night", ""]


def test_jobs_that_were_preempted_are_counted_as_a_rule_to_be_told(tmp_path):
    """One was requeued and ran again, one was cancelled; who may preempt whom stands in no export."""
    rows = [
        "7|a|ann|2024-03-01T08:00:00|2024-03-01T08:00:00|2024-03-01T09:00:00|01:00:00|PREEMPTED|gres/gpu=1||1|0",
        "7|a|ann|2024-03-01T09:00:00|2024-03-01T09:30:00|2024-03-01T10:30:00|01:00:00|COMPLETED|gres/gpu=1||1|0",
        "8|b|ann|2024-03-01T09:00:00|2024-03-01T09:30:00|2024-03-01T10:30:00|01:00:00|PREEMPTED|gres/gpu=1||1|0",
        "9|c|ann|2024-03-01T09:00:00|2024-03-01T09:30:00|2024-03-01T10:30:00|01:00:00|COMPLETED|gres/gpu=1||1|0",
    ]
    jobs = read(put(tmp_path, "export.txt", "\n".join([SACCT_HEADER, *rows]) + "\n"))
    said = "a rule that slurm(preempt_type=...) alone keeps: preemption by QOS or partition (state PREEMPTED)"
    assert f"{said}: 2 of 3 jobs." in jobs.notes


def test_pods_in_yaml_are_those_in_json(tmp_path):
    """As `kubectl -o yaml` prints them, and as several documents; moments may stand without quotes."""
    yaml = pytest.importorskip("yaml")
    listed = {"apiVersion": "v1", "items": PODS, "kind": "List"}
    known = read(put(tmp_path, "pods.json", listed))
    whole = yaml.safe_dump(listed, sort_keys=False)
    for name, text in (
        ("list.yaml", whole),
        ("plain.yaml", whole.replace("'2024-03-01T08:10:00Z'", "2024-03-01T08:10:00Z")),
        ("several.yaml", "# by kubectl\n---\n" + "---\n".join(yaml.safe_dump(one, sort_keys=False) for one in PODS)),
    ):
        (tmp_path / name).write_text(text)
        assert sniff(tmp_path / name) == "kubernetes"
        jobs = read(tmp_path / name)
        assert jobs.id.tolist() == known.id.tolist()
        assert jobs.duration_s.tolist() == known.duration_s.tolist()
        assert jobs.arrival_s.tolist() == known.arrival_s.tolist()
    (tmp_path / "broken.yaml").write_text("apiVersion: v1\nitems: [1\n")
    with pytest.raises(TraceError, match=r"broken.yaml is no YAML"):
        read(tmp_path / "broken.yaml")


def test_devices_of_slurm_that_the_format_names_count_as_gpus(tmp_path):
    """Sources: slurm.schedmd.com/gres.html: shards and MPS are parts of GPUs; other Gres have names of the site's."""
    amounts = ["gres/npu=8,gres/npu:910b=8", "gres/npu=4", "gres/shard=2", "gres/mps=50", "gres/gpu=1,gres/gpu:a100=1"]
    rows = [
        f"{i}|j|ann|2024-03-01T08:00:00|2024-03-01T08:00:00|2024-03-01T09:00:00|01:00:00|COMPLETED|{tres}||1|0"
        for i, tres in enumerate(amounts, start=1)
    ]
    path = put(tmp_path, "export.txt", "\n".join([SACCT_HEADER, *rows]) + "\n")
    assert any(
        "gres/mps, gres/npu, gres/npu:910b, gres/shard of 4 rows; --format 'sacct(mps=0.01,npu=1,shard=1/4)'" in note
        for note in read(path).notes
    )
    jobs = read(path, format="sacct(mps=0.01,npu,shard=1/4)")
    assert jobs.gpus.tolist() == [8, 4, 0.5, 0.5, 1]
    assert jobs.measured_on.tolist() == ["npu-910b", "npu", "", "", "a100"]
    only = put(tmp_path, "npus.txt", "\n".join([SACCT_HEADER, *rows[:2]]) + "\n")
    with pytest.raises(TraceError, match=r"none of 2 rows is a job with GPUs.*--format 'sacct\(npu=1\)' counts them"):
        read(only)
    with pytest.raises(InputError, match=r"devices: 'npu=0' is no device; expected names"):
        read(only, format="sacct(npu=0)")
    with pytest.raises(InputError, match="unknown format 'sacc'"):
        read(only, format="sacc(npu)")


@pytest.mark.parametrize("line", ["sbatch x.sh", "sbatch --mem=4G x.sh -w 8", "sbatch --array=1-2%1 x.sh", "", None])
def test_how_many_tasks_of_an_array_run_at_once_is_read_whatever_the_command_was(tmp_path, line):
    """`#SBATCH --array` stands in the script, so that the command says nothing of it."""
    entry = SACCT_JSON["jobs"][0]
    tasks = [
        entry | {
            "job_id": 200 + i, "submit_line": line,
            "array": {"job_id": 200, "task_id": i, "task": "", "limits": {"max": {"running": {"tasks": 1}}}},
        }
        for i in (1, 2)
    ]  # fmt: skip
    jobs = read(put(tmp_path, "sacct.json", {"meta": {}, "jobs": tasks}))
    assert jobs.at_most.tolist() == [1, 1]
    waits = [
        {
            "job_id": 200 + i, "array_job_id": 200, "array_task_id": i, "array_max_tasks": 1, "user_name": "ann",
            "job_state": ["COMPLETING"], "submit_time": 1709280000, "start_time": 1709280010, "end_time": 1709283610,
            "tres_alloc_str": "cpu=8,gres/gpu=2", "node_count": 1,
        }
        for i in (1, 2)
    ]  # fmt: skip
    squeue = {"last_update": {"number": 1709290000}, "jobs": waits}
    assert read(put(tmp_path, "squeue.json", squeue)).at_most.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("cells", "types", "gpus"),
    [
        (["4x A100", "gpu:v100:2", "8"], ["A100", "v100", ""], [4, 2, 8]),
        (["H100:2", "2 GPUs", "cpu=8,gres/gpu:t4=1"], ["H100", "", "t4"], [2, 2, 1]),
    ],
)
def test_types_of_gpus_beside_their_number_are_those_on_which_jobs_ran(tmp_path, cells, types, gpus):
    rows = [f'{i},2024-03-04 10:0{i}:00,3600,"{cell}"' for i, cell in enumerate(cells)]
    path = put(tmp_path, "mine.csv", "\n".join(["id,submit_time,duration_s,gpus", *rows]))
    jobs = mapped(path, proposed(*table(path))).jobs
    assert jobs.measured_on.tolist() == types
    assert (jobs.n_workers * jobs.worker_demand[:, GPUS]).tolist() == gpus
