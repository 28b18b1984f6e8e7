"""The ledger of a trace: each GPU-hour of a file is in a job, or a sentence says why not; jobs are told apart.

The kinds of files are those of public issue threads (reportseff #31 and #63, clusterdata #260, k8s-device-plugin #328)
and of the manual pages of sacct(1) and Kubernetes; the files are made here.
"""

from __future__ import annotations

import json
import tempfile

import numpy as np
import pytest
from hypothesis import given

from labkit.core.errors import InputError, TraceError
from labkit.topology import build
from labkit.workloads.readers import explained, ledgered, read, sniff
from labkit.workloads.readers.ledger import Segments, occupied
from labkit.workloads.readers.mapped import keep, mapped, named, proposed, table
from labkit.workloads.trace_check import beyond, check, occupancy

from .exports import PODS, SACCT, number, pod
from .test_exports import SLURM, attempt, put

HEADER = "JobID|JobName|User|Submit|Start|End|Elapsed|State|AllocTRES"


def gpu_hours(jobs):
    return float((jobs.gpus * jobs.duration_s).sum() / 3600)


def row(
    job, *, name="train", user="u", day=4, hours=(8, 9), elapsed="01:00:00", state="COMPLETED", gpus=1, submit=None
):
    """Return a row of sacct; `hours` are its start and its end."""
    at = f"2024-03-{day:02d}T{{:02d}}:00:00".format
    start, end = hours
    tres = f"cpu=4,gres/gpu={gpus},mem=8G,node=1"
    return (
        f"{job}|{name}|{user}|{at(start if submit is None else submit)}|{at(start)}|{at(end)}|{elapsed}|{state}|{tres}"
    )


def slurm(tmp_path, *rows, header=HEADER):
    return ledgered(put(tmp_path, "export.txt", "\n".join([header, *rows]) + "\n"))


def imported(tmp_path, text, *, told=""):
    path = put(tmp_path, "mine.csv", text)
    frame, separator = table(path)
    return mapped(path, proposed(frame, separator, chosen=named(told)))


# Every hour has a place


@given(SLURM)
def test_gpu_hours_of_a_slurm_export_are_in_jobs_or_have_a_reason(rows):
    header = "JobID|Submit|Start|End|Elapsed|State|AllocTRES|ReqTRES"
    with tempfile.TemporaryDirectory() as folder:
        path = put(folder, "x", "\n".join([header, *("|".join(cells) for cells in rows)]))
        found, _ = attempt(lambda: ledgered(path, format="sacct"))
        assert found is None or found.ledger.unexplained_hours == 0
        assert found is None or found.ledger.job_hours == pytest.approx(gpu_hours(found.jobs))


@pytest.mark.parametrize(
    ("name", "content"),
    [("sacct", SACCT), ("kubernetes", json.dumps({"apiVersion": "v1", "items": PODS}))],
)
def test_the_ledger_of_exports_is_balanced_and_their_schedule_has_the_hours_of_the_file(tmp_path, name, content):
    found = ledgered(put(tmp_path, "x", content))
    assert found.ledger.unexplained_hours == 0
    held = found.segments
    assert (held.gpus * (held.end_s - held.start_s)).sum() / 3600 == pytest.approx(gpu_hours(found.jobs)), name


@pytest.mark.parametrize("kind", ["csv", "gavel", "philly-csv", "helios", "alibaba-2023", "google-2011", "philly-log"])
def test_every_reader_has_a_ledger(tmp_path, kind):
    from .test_readers_fuzz import SEEDS

    path = tmp_path / "x"
    path.write_bytes(SEEDS[kind])
    found = ledgered(path, format=kind)
    assert found.ledger.n_jobs == len(found.jobs)
    assert found.ledger.unexplained_hours == 0
    assert found.jobs.notes == read(path, format=kind).notes


def test_what_was_not_taken_as_it_stands_is_one_line_of_the_notes(tmp_path):
    found = slurm(tmp_path, row(1, gpus=4), row(1, gpus=4), row(2))
    assert "GPU-hours: 9 in the file = 5 in jobs + 4 repeated, the same in every column." in found.jobs.notes
    assert not any("GPU-hours" in note for note in slurm(tmp_path, row(1), row(2)).jobs.notes)


# Who is who


def test_a_job_of_slurm_is_a_cluster_a_number_and_a_submission(tmp_path):
    rows = [f"alpha|{row(7, gpus=8, state='PREEMPTED')}", f"beta|{row(7, hours=(12, 13))}"]
    found = slurm(tmp_path, *rows, header=f"Cluster|{HEADER}")
    assert found.jobs.id.tolist() == ["alpha/7", "beta/7"]
    assert gpu_hours(found.jobs) == 9


def test_months_put_together_count_no_attempt_twice(tmp_path):
    running = row(7, state="RUNNING", hours=(8, 20), elapsed="12:00:00").replace("2024-03-04T20:00:00", "Unknown")
    done = row(7, hours=(8, 23), elapsed="15:00:00")
    for order in ((running, done), (done, running)):
        found = slurm(tmp_path, *order, row(8))
        assert found.jobs.id.tolist() == ["7", "8"]
        assert gpu_hours(found.jobs) == 16
        assert "12 of an older state of the same attempt" in found.ledger.balance()


def test_a_requeue_keeps_all_its_hours_and_the_same_number_of_another_user_is_another_job(tmp_path):
    first, again = row(7, state="REQUEUED"), row(7, submit=9, hours=(10, 13), elapsed="03:00:00")
    assert slurm(tmp_path, first, again).jobs.duration_s.tolist() == [4 * 3600]
    other = slurm(tmp_path, row(7, state="NODE_FAIL"), row(7, user="else", submit=9, hours=(10, 11)))
    assert other.jobs.id.tolist() == ["7", "7#2"]
    late = slurm(tmp_path, row(7, state="NODE_FAIL").replace("2024", "2017"), row(7))
    assert late.jobs.id.tolist() == ["7", "7#2"]  # a number that comes back after years


def test_a_resized_job_is_the_sum_of_its_sizes(tmp_path):
    large = row(7, gpus=4, state="RESIZING")
    small = row(7, gpus=2, submit=8, hours=(9, 11), elapsed="02:00:00")
    found = slurm(tmp_path, large, small)
    assert found.jobs.id.tolist() == ["7"]
    assert gpu_hours(found.jobs) == 8
    assert any("attempts of several sizes" in note for note in found.jobs.notes)


def test_components_of_unequal_length_have_their_hours_and_no_type_where_types_differ(tmp_path):
    long = row("7+0", gpus=4).replace("gres/gpu=4", "gres/gpu:a100=4,gres/gpu=4")
    short = row("7+1", gpus=4, elapsed="00:15:00").replace("gres/gpu=4", "gres/gpu:v100=4,gres/gpu=4")
    jobs = slurm(tmp_path, long, short.replace("T09:00:00|00:15", "T08:15:00|00:15")).jobs
    assert (jobs.n_workers.tolist(), gpu_hours(jobs), jobs.measured_on.tolist()) == ([8], 5, [""])


def components(*rows, spread="NNodes|NodeList|Partition|Constraints"):
    """Return rows of a heterogeneous job, with what each has: GPUs, kind of GPU, nodes, hosts, partition, features."""
    lines = []
    for i, (gpus, kind, *told) in enumerate(rows):
        typed = f"gres/gpu:{kind}={gpus},gres/gpu={gpus}" if gpus else "billing=4"
        lines.append("|".join([row(f"7+{i}").replace("gres/gpu=1", typed), *told]))
    return {"rows": lines, "header": f"{HEADER}|{spread}"}


@pytest.mark.parametrize(
    ("rows", "nodes", "hosts", "partition", "constraint"),
    [
        ([(8, "a100", "1", "a01", "gpu", "ib"), (8, "a100", "1", "a02", "gpu", "ib")], 2, "a01,a02", "gpu", "ib"),
        ([(0, "", "1", "c01", "cpu", "big"), (8, "a100", "1", "g01", "gpu", "")], 1, "g01", "gpu", ""),
        ([(8, "v100", "1", "v01", "old", "x"), (8, "a100", "1", "a01", "new", "y")], 2, "v01,a01", "", ""),
        ([(2, "a100", "1", "a01", "gpu", ""), (8, "a100", "1", "a02", "gpu", "")], 0, "a01,a02", "gpu", ""),
        ([(2, "a100", "1", "a01", "gpu", ""), (6, "a100", "1", "a01", "gpu", "")], 1, "a01", "gpu", ""),
    ],
    ids=["alike", "one without GPUs", "two types", "unlike sizes", "on one host"],
)
def test_a_heterogeneous_job_has_the_nodes_of_its_gpus_and_the_rules_that_they_share(
    tmp_path, rows, nodes, hosts, partition, constraint
):
    made = components(*rows)
    jobs = slurm(tmp_path, *made["rows"], header=made["header"]).jobs
    assert (jobs.id.tolist(), jobs.nodes.tolist(), jobs.recorded_hosts.tolist()) == (["7"], [nodes], [hosts])
    assert (jobs.partition_names().tolist(), jobs.constraint.tolist()) == ([partition], [constraint])
    assert jobs.n_workers.tolist() == [sum(gpus for gpus, *_ in rows)]
    differs = len({part for gpus, _, _, _, part, _ in rows if gpus}) > 1
    assert any("the partition that differs among components" in note for note in jobs.notes) == differs


@pytest.mark.parametrize(
    ("line", "constraint", "after", "notes"),
    [
        ("sbatch -p a100 train.sh -d imagenet -w 8 -L 24", "", "", 0),
        ("sbatch -Hp a100 --exclusive -w n1 --time 1:00 train.sh -w 8", "@n1", "", 0),
        ("sbatch -dafterok:6 -wn[1-2] x.sh --exclude=n3", "@n1|@n2", "6", 0),
        ("sbatch --depend=afterok:6 -L matlab x.sh", "", "6", 1),
        ("sbatch --wrap=python -m main -w 1 -x 3", "", "", 0),
        ("sbatch --wrap='python main.py -x 1' -w n1", "@n1", "", 0),
        ("sbatch --comment=it's -w n1 : -w n2 x.sh", "@n1|@n2", "", 0),
        ("sbatch -w n1 : -p a100 x.sh", "", "", 0),
    ],
)
def test_options_of_a_submit_line_are_those_before_its_script(tmp_path, line, constraint, after, notes):
    jobs = slurm(tmp_path, f"{row(6)}|", f"{row(7, hours=(9, 10))}|{line}", header=f"{HEADER}|SubmitLine").jobs
    assert (jobs.constraint[1], jobs.after[1]) == (constraint, after)
    assert sum("a rule that is not kept" in note for note in jobs.notes) == notes


@pytest.mark.parametrize("separator", "|;")
def test_a_constraint_on_all_nodes_together_is_not_kept_and_counted(tmp_path, separator):
    told = [(2, "[rack1|rack2]"), (1, "[rack1|rack2]"), (2, "rack1|rack2"), (2, "rack1*2&rack2*4"), (2, "")]
    rows = [f"{row(i, gpus=2)}|{nodes}|".replace("|", separator) + f"{constraint}{separator}0"
            for i, (nodes, constraint) in enumerate(told)]  # fmt: skip
    header = f"{HEADER}|NNodes|Constraints|Priority".replace("|", separator)
    found = slurm(tmp_path, *rows, header=header)
    assert any("all nodes of a job together ([a|b], a*2): 2 of 5 jobs" in note for note in found.jobs.notes)
    assert found.jobs.constraint.tolist() == ["[rack1|rack2]"] * 2 + ["rack1|rack2", "rack1*2&rack2*4", ""]


def with_uid(entry, *, own, owner=""):
    entry["metadata"]["uid"] = own
    for reference in entry["metadata"]["ownerReferences"]:
        reference["uid"] = owner
    return entry


def kubernetes(tmp_path, *pods):
    return ledgered(put(tmp_path, "pods.json", {"apiVersion": "v1", "items": list(pods)}))


def test_a_job_of_kubernetes_is_a_namespace_and_the_uid_of_its_owner(tmp_path):
    label = {"training.kubeflow.org/job-name": "n"}
    one = pod("n-0", labels=label, owner=("PyTorchJob", "n"), gpus=4, ran=("08:00:00", "09:00:00"))
    two = pod("n-0", labels=label, owner=("PyTorchJob", "n"), gpus=4, created="20:00:00", ran=("20:00:00", "21:00:00"))
    found = kubernetes(tmp_path, with_uid(one, own="a", owner="x"), with_uid(two, own="b", owner="y"))
    assert found.jobs.id.tolist() == ["lab/n", "lab/n#2"]
    assert found.jobs.arrival_s.tolist() == [0, 12 * 3600]


def test_a_pod_in_two_lists_is_one_pod_as_it_was_seen_last(tmp_path):
    seen = [pod("n", gpus=2, ran=("08:00:00", None), phase="Running"), pod("n", gpus=2, ran=("08:00:00", "10:00:00"))]
    lists = [json.dumps({"apiVersion": "v1", "items": [with_uid(one, own="a")]}) for one in seen]
    found = ledgered(put(tmp_path, "two.json", "\n".join(lists)))
    assert (len(found.jobs), gpu_hours(found.jobs)) == (1, 4)
    alone = "\n".join(json.dumps(with_uid(one, own=str(i))) for i, one in enumerate(seen))
    assert sniff(put(tmp_path, "lines.json", alone)) == "kubernetes"


def test_a_gang_that_grows_and_one_with_a_straggler_have_the_hours_of_their_pods(tmp_path):
    label = {"training.kubeflow.org/job-name": "e"}
    early = [pod(f"e-{i}", labels=label, gpus=1, ran=("08:00:00", "12:00:00")) for i in range(2)]
    late = [pod(f"e-{i}", labels=label, gpus=1, ran=("11:00:00", "12:00:00")) for i in range(2, 6)]
    found = kubernetes(tmp_path, *early, *late)
    assert (found.jobs.n_workers.tolist(), gpu_hours(found.jobs)) == ([6], 12)
    assert any("a gang that changed" in note for note in found.jobs.notes)


def test_completions_of_a_job_that_do_not_run_at_once_are_jobs_and_those_that_do_are_a_gang(tmp_path):
    def completion(i, *ran):
        index = {"job-name": "s", "batch.kubernetes.io/job-completion-index": str(i)}
        return pod(f"s-{i}", labels=index, owner=("Job", "s"), gpus=1, ran=ran)

    sweep = kubernetes(tmp_path, completion(0, "08:00:00", "09:00:00"), completion(1, "09:00:00", "10:00:00"))
    assert sweep.jobs.id.tolist() == ["lab/s[0]", "lab/s[1]"]
    gang = kubernetes(tmp_path, completion(0, "08:00:00", "09:00:00"), completion(1, "08:00:00", "09:00:00"))
    assert gang.jobs.id.tolist() == ["lab/s"]


def test_a_crash_loop_holds_its_gpus_all_the_time(tmp_path):
    looping = pod("c", gpus=8, phase="Running")
    before = {"terminated": {"startedAt": "2024-03-01T14:00:00Z", "finishedAt": "2024-03-01T14:01:00Z"}}
    states = [{"name": "main", "restartCount": 40, "state": {"waiting": {}}, "lastState": before}]
    looping["status"] |= {"startTime": "2024-03-01T08:00:00Z", "containerStatuses": states}
    found = kubernetes(tmp_path, looping, pod("last", gpus=1, ran=("08:00:00", "15:00:00")))
    assert dict(zip(found.jobs.id.tolist(), found.jobs.duration_s.tolist(), strict=True))["lab/c"] == 7 * 3600


def test_devices_that_are_no_known_gpus_are_named(tmp_path):
    other = pod("npu", ran=("08:00:00", "09:00:00"))
    other["spec"]["containers"][0]["resources"]["limits"]["huawei.com/Ascend910"] = "8"
    found = kubernetes(tmp_path, other, pod("gpu", gpus=1, ran=("08:00:00", "09:00:00")))
    assert (
        "devices that are not counted as GPUs: huawei.com/Ascend910 of 1 pods; --format "
        "'kubernetes(huawei.com/Ascend910=1)' counts them as so many GPUs each."
    ) in found.jobs.notes
    (tmp_path / "pods.json").write_text(json.dumps({"kind": "List", "items": [other]}))
    assert ledgered(tmp_path / "pods.json", format="kubernetes(huawei.com/Ascend910)").jobs.gpus.tolist() == [8]


# One bad cell is one row


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (row(2, elapsed="soon"), "1 with a cell that cannot be read (line 3: Elapsed is 'soon'"),
        (row(2).replace("gres/gpu=1", "gpus"), "1 with a cell that cannot be read (line 3: AllocTRES is"),
        ("2|too|short", "1 with a wrong number of cells (line 3: 3 cells; expected 9"),
        (HEADER, "1 headers once more"),
    ],
)
def test_a_row_that_cannot_be_read_is_lost_alone_and_told(tmp_path, bad, told):
    found = slurm(tmp_path, row(1), bad, row(3), row(4))
    assert found.jobs.id.tolist() == ["1", "3", "4"]
    assert told in "\n".join(found.jobs.notes)


@pytest.mark.parametrize("name", ["lr=0.1|bs=32", "a|b|c", "two\nlines"])
def test_a_separator_or_newline_in_a_name_is_mended(tmp_path, name):
    found = slurm(tmp_path, row(1, name=name), row(2))
    assert found.jobs.id.tolist() == ["1", "2"]
    assert found.jobs.model_names().tolist()[0] == name.replace("\n", " ")
    assert any("were mended" in note for note in found.jobs.notes) or "\n" in name


def test_amounts_that_say_none_and_slices_of_gpus_are_read(tmp_path):
    unset = row(1).replace("mem=8G", "energy=18446744073709551614,mem=8G")
    negative = row(2).replace("mem=8G", "energy=-2,mem=8G")
    slices = row(3, gpus=7).replace("gres/gpu=7", "gres/gpu:a100_1g.5gb=7,gres/gpu=7")
    jobs = slurm(tmp_path, unset, negative, slices).jobs
    assert jobs.gpus.tolist() == pytest.approx([1, 1, 1])
    assert jobs.measured_on.tolist() == ["", "", "a100"]


@pytest.mark.parametrize("change", [
    lambda text: text.replace("|", "^|^").encode(),
    lambda text: ("slurm_load_jobs error: no controller\n" + text).encode(),
    lambda text: text.encode("utf-16"),
    lambda text: text.replace("train", "tr\xe9s").encode("latin-1"),
    lambda text: ("\ufeff" + text.replace("\n", "\r\n")).encode(),
])  # fmt: skip
def test_separators_of_several_letters_complaints_above_and_other_encodings_are_read(tmp_path, change):
    path = tmp_path / "x.txt"
    path.write_bytes(change("\n".join([HEADER, row(1), row(2)]) + "\n"))
    assert sniff(path) == "sacct"
    assert gpu_hours(read(path)) == 2


def test_quoted_cells_with_commas_are_read(tmp_path):
    quoted = [",".join(f'"{cell}"' for cell in line.split("|")) for line in (HEADER, row(1, name="a, b"))]
    path = put(tmp_path, "x.csv", "\n".join(quoted) + "\n")
    assert sniff(path) == "sacct"
    assert read(path).model_names().tolist() == ["a, b"]


def test_an_entry_of_a_list_that_cannot_be_read_is_lost_alone(tmp_path):
    ran = {"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 02:00:00", "detail": [{"gpus": ["g"]}]}
    log = [{"jobid": str(i), "submitted_time": "2017-10-07 01:00:00", "attempts": [ran]} for i in range(3)]
    log[1]["submitted_time"] = "None"
    found = ledgered(put(tmp_path, "log.json", log))
    assert (found.jobs.id.tolist(), found.ledger.n_jobs) == (["0", "2"], 2)
    assert "job 1 (1): submitted_time is 'None'" in found.jobs.notes[0]


def test_what_squeue_prints_as_json_is_read_until_it_was_printed(tmp_path):
    waits = {"job_id": 2, "job_state": ["PENDING"], "submit_time": number(100), "tres_req_str": "gres/gpu=1"}
    runs = {
        "job_id": 1, "name": "a", "user_name": "ann", "job_state": ["RUNNING"], "submit_time": number(100),
        "start_time": number(200), "end_time": number(90_000), "tres_alloc_str": "cpu=8,gres/gpu:a100=2,gres/gpu=2",
    }  # fmt: skip
    path = put(tmp_path, "squeue.json", {"jobs": [runs, waits], "last_update": number(3800)})
    assert sniff(path) == "sacct"
    found = ledgered(path)
    assert (found.jobs.id.tolist(), found.jobs.duration_s.tolist(), found.jobs.gpus.tolist()) == (["1"], [3600], [2])
    assert any("not ended when the file was written" in note for note in found.jobs.notes)


# Tables


@pytest.mark.parametrize(
    ("columns", "cells", "gpus"),
    [
        ("nodes,gpus_per_node", "4,8", 32),
        ("num_inst,num_gpu", "3,0.5", 1.5),
        ("worker_num,gpu_request", "5,8", 40),
        ("node_num,gpu_num", "8,64", 64),  # nodes beside GPUs of the whole job
        ("replicas,total_gpus", "4,8", 8),
        ("num_workers,num_gpus", "8,8", 8),  # one each
        ("gres_req,gres_alloc", "gpu:8,gpu:a100:2(S:0)", 2),
    ],
)
def test_gpus_of_each_instance_or_node_are_multiplied_and_asked_about(tmp_path, columns, cells, gpus):
    found = imported(tmp_path, f"id,submit,duration,{columns}\n1,0,3600,{cells}\n")
    assert gpu_hours(found.jobs) == pytest.approx(gpus)
    by = cells.count(",") and gpus not in (8, 64, 2)
    assert any(f"labkit traces import --map gpus={columns.split(',')[1]}:whole" in n for n in found.jobs.notes) == by
    whole = imported(
        tmp_path, f"id,submit,duration,{columns}\n1,0,3600,{cells}\n", told=f"gpus={columns.split(',')[1]}:whole"
    )
    assert gpu_hours(whole.jobs) <= gpu_hours(found.jobs)


def test_what_an_amount_is_of_is_kept_beside_the_file(tmp_path):
    path = put(tmp_path, "mine.csv", "id,submit,duration,nodes,gpus_per_node,mem_per_gpu_gb\n1,0,3600,4,8,80\n")
    keep(proposed(*table(path)), path)
    jobs = read(path)
    assert jobs.gang_demand[0, 0] == 32
    assert jobs.gang_demand[0, 2] == 32 * 80


TIMES = "id,submit,start,end,{},gpus\n" + "".join(
    f"{i},2024-03-01T08:00:00,2024-03-01T09:00:00,2024-03-01T1{i}:00:00,{{}},2\n" for i in range(1, 4)
)  # from 9 to 11, 12 and 13 o'clock


@pytest.mark.parametrize(
    ("column", "cells", "hours", "told"),
    [
        ("duration", (7200, 10800, 14400), 18, ""),
        ("duration", (120, 180, 240), 18, ""),  # minutes, as end - start shows
        ("walltime", (86400, 86400, 86400), 18, ""),  # a limit
        ("duration", (10800, 14400, 18000), 24, "it is the time from submission to end, waits included"),
        ("duration", (7200, 10800, 99999), 65.555, "duration differs from end - start in 1 of 3 rows"),
    ],
)
def test_durations_are_compared_with_start_and_end(tmp_path, column, cells, hours, told):
    found = imported(tmp_path, TIMES.format(column, *cells))
    assert gpu_hours(found.jobs) == pytest.approx(hours, rel=1e-3)
    assert told in "\n".join(found.jobs.notes)
    assert bool(found.ledger.checks) == bool(told)


def test_what_stands_for_not_known_is_no_moment_and_no_amount(tmp_path):
    rows = ["1,1612137600,1612137610,1612141210,2", "2,1612137600,0,1612137700,40", "3,1612137600,1612137700,0,8"]
    rows += ["4,1612137600,4294967294,-1,8", "5,1612137600,1612137600,1612141200,-1"]
    rows += ["6,1612137600,1612137610,9223372036854775807,2"]
    found = imported(tmp_path, "id,time_submit,time_start,time_end,gpus\n" + "\n".join(rows) + "\n")
    assert found.jobs.id.tolist() == ["1"]
    assert gpu_hours(found.jobs) == 2


@pytest.mark.parametrize(
    ("column", "told", "second", "seconds"),
    [
        ("arrival_min", "", "30", 1800),
        ("arrival_time_h", "", "30", 108_000),
        ("submit_hour", "", "30", 108_000),
        ("submit_time_ms", "", "1800000", 1800),
        ("submit", "arrival=submit:min", "30", 1800),
        ("submit", "arrival=submit:d", "30", 2_592_000),
        ("submit_min", "", "2024-03-01 10:30", np.nan),  # a date has no unit
    ],
)
def test_the_unit_in_the_name_of_a_moment_counts_and_can_be_told(tmp_path, column, told, second, seconds):
    first = "2024-03-01 10:00" if np.isnan(seconds) else "0"
    jobs = imported(tmp_path, f"id,{column},duration,gpus\n1,{first},60,1\n2,{second},60,1\n", told=told).jobs
    assert jobs.arrival_s.tolist() == [0, 1800 if np.isnan(seconds) else seconds]


@pytest.mark.parametrize("never", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1/1/0001 12:00:00 AM"])
def test_dates_of_languages_and_databases_that_say_never_are_not_known(tmp_path, never):
    """Go's zero time is 0001-01-01; one job ran from 10:05 to 14:05 on 4 GPUs."""
    rows = ["1,2024-03-01T10:00:00Z,2024-03-01T10:05:00Z,2024-03-01T14:05:00Z,4"]
    rows += [f"2,2024-03-01T12:00:00Z,{never},{never},4"]
    found = imported(tmp_path, "id,submitted,started,ended,gpus\n" + "\n".join(rows) + "\n")
    assert (found.jobs.id.tolist(), gpu_hours(found.jobs)) == (["1"], 16)


GPUS = "id,submit,duration,gpus\n" + "".join(f"{i},{60 * i},3600,4\n" for i in range(3)) + "9,900,3600,{}\n"


@pytest.mark.parametrize(
    ("cell", "hours", "told"),
    [
        ("(null)", 12, "1 without a number of GPUs"),
        ("A100:2", 14, ""),
        ("four", 12, "1 with a cell that cannot be read (line 5: gpus is 'four'"),
    ],
)
def test_a_column_that_is_surely_of_gpus_is_read_but_for_the_cells_that_are_not(tmp_path, cell, hours, told):
    """Slurm writes (null), and takes --gpus=a100:2."""
    found = imported(tmp_path, GPUS.format(cell))
    assert gpu_hours(found.jobs) == hours
    assert told in "\n".join(found.jobs.notes)


def test_a_column_that_would_tell_gpus_or_durations_is_named_with_the_cell_that_is_not_understood(tmp_path):
    jobs = imported(tmp_path, "id,submit,duration,gpus\n1,0,60,two\n2,0,60,two\n").jobs
    assert (
        "no column of GPUs (line 2: gpus is 'two', which is not understood), so that a job takes one: 2 of 2 jobs."
    ) in jobs.notes
    with pytest.raises(InputError, match=r"how long jobs ran \(line 3: end is '2024-03-01 PST', which is not"):
        imported(tmp_path, "id,submit,end,gpus\n1,0,,2\n2,0,2024-03-01 PST,1\n")


@pytest.mark.parametrize(
    ("day", "cells", "seconds", "told"),
    [
        ("01.03.2024 10:00", ("1.234", "812", "15.300"), (1234, 812, 15300), "points of thousands: '1.234' is 1234."),
        ("2024-03-01 10:00", ("1.234", "812", "15.300"), (1.234, 812, 15.3), ""),
        ("01.03.2024 10:00", ("1.234", "1812", "15.300"), (1.234, 1812, 15.3), ""),  # thousands without a point
        ("01.03.2024 10:00", ("0.125", "1", "1.250"), (0.125, 1, 1.25), ""),
        ("2024-03-01 10:00", ("1,5", "12,25", "1.012,25"), (1.5, 12.25, 1012.25), "'1,5' is 1.5."),
        ("2024-03-01 10:00", ("1\xa0234,5", "1'234", "600"), (1234.5, 1234, 600), "spaces or apostrophes of thousands"),
        ("2024-03-01 10:00", ("1,5 h", "2", "1 day, 0:00:30"), (5400, 2, 86430), ""),
    ],
)
def test_marks_of_thousands_and_of_decimals_are_told_apart(tmp_path, day, cells, seconds, told):
    rows = "".join(f"{i};{day};{cell};1\n" for i, cell in enumerate(cells))
    jobs = imported(tmp_path, f"id;submit;duration;gpus\n{rows}").jobs
    assert jobs.duration_s.tolist() == list(seconds)
    assert told in "\n".join(jobs.notes)
    assert any("is 1" in note for note in jobs.notes) == bool(told)


def test_a_row_without_a_start_beside_others_with_one_never_ran_whatever_its_duration(tmp_path):
    rows = ["1,2024-03-01 10:00,2024-03-01 10:30,2024-03-01 12:30,120,4", "2,2024-03-01 10:00,,2024-03-01 12:00,120,8"]
    found = imported(tmp_path, "job,submitted,started,ended,duration_min,gpus\n" + "\n".join(rows) + "\n")
    assert found.ledger.left_out == {"without a start (never started)": 1}
    assert (gpu_hours(found.jobs), found.ledger.file_hours) == (8, 24)


@pytest.mark.parametrize(
    ("column", "told", "seconds", "asks"),
    [
        ("Duration (hh:mm)", "", 95_400, False),
        ("Duration (mm:ss)", "", 1590, False),
        ("Duration (hh:mm:ss)", "", 1590, False),
        ("Duration", "", 1590, True),
        ("Duration", "duration=Duration:h", 95_400, False),
        ("Duration", "duration=Duration:min", 1590, False),
    ],
)
def test_two_parts_of_a_time_are_hours_and_minutes_where_something_says_so(tmp_path, column, told, seconds, asks):
    """26:30 is 26 hours and a half, or 26 minutes and a half."""
    jobs = imported(tmp_path, f"Job,Submitted,{column},GPUs\n1,2024-03-01 10:00,26:30,4\n", told=told).jobs
    assert jobs.duration_s.tolist() == [seconds]
    note = "Duration has times such as 26:30, read as minutes:seconds (if they are hours:minutes: labkit traces import "
    assert (f"{note}--map duration=Duration:h)." in jobs.notes) == asks


def test_two_parts_of_a_time_are_hours_and_minutes_where_start_and_end_show_it(tmp_path):
    rows = ["1,2024-03-01 10:00,2024-03-02 12:30,26:30,4", "2,2024-03-01 11:00,2024-03-01 12:30,01:30,8"]
    found = imported(tmp_path, "Job,Start,End,Duration,GPUs\n" + "\n".join(rows) + "\n")
    assert (gpu_hours(found.jobs), found.ledger.checks) == (26.5 * 4 + 1.5 * 8, [])


@pytest.mark.parametrize(
    ("column", "told", "cells", "note"),
    [
        ("submit_date", "", ("45352", "45355"), "counts days from 1899-12-30"),
        ("submit_date", "", ("20240301", "20240304"), "has dates as numbers: 20240301 is 2024-03-01."),
        ("submitted", "arrival=submitted:days", ("45352", "45355"), "counts days from 1899-12-30"),
        ("submit_day", "", ("0", "3"), ""),
    ],
)
def test_whole_days_are_dates_where_the_name_says_so(tmp_path, column, told, cells, note):
    """45352 is 2024-03-01 in a spreadsheet; three days are 259,200 s."""
    found = imported(tmp_path, f"id,{column},duration_h,gpus\n1,{cells[0]},2,4\n2,{cells[1]},3,8\n", told=told)
    assert found.jobs.arrival_s.tolist() == [0, 259_200]
    assert found.zero_s == (1_709_251_200 if note else 0)
    assert note in "\n".join(found.jobs.notes)


@pytest.mark.parametrize(
    ("duration", "told", "hours", "asks"),
    [
        (("0.0625", "1.5"), "", 37.5, True),
        (("60", "3600"), "", 61 / 60, False),
        (("0.0625", "1.5"), "duration=duration:s", 1.5625 / 3600, False),
    ],
)
def test_durations_beside_days_of_a_spreadsheet_are_days_and_asked_about(tmp_path, duration, told, hours, asks):
    text = "id,submitted,duration,gpus\n1,45352.5,{},1\n2,45353.25,{},1\n".format(*duration)
    found = imported(tmp_path, text, told=told)
    assert gpu_hours(found.jobs) == pytest.approx(hours)
    assert any("labkit traces import --map duration=duration:s" in note for note in found.jobs.notes) == asks


@pytest.mark.parametrize(("first", "second", "n"), [(1, 1000, 1), (1000, 1, 1), (1, 1, 0), (1_000_000, 1000, 1)])
def test_seconds_and_milliseconds_since_1970_in_one_column_are_each_read_by_size(tmp_path, first, second, n):
    at = 1_709_280_000
    rows = [f"1,{at * first},{(at + 7200) * first},4", f"2,{(at + 3600) * second},{(at + 10800) * second},8"]
    found = imported(tmp_path, "id,start,end,gpus\n" + "\n".join(rows) + "\n")
    assert found.jobs.arrival_s.tolist() == [0, 3600]
    assert gpu_hours(found.jobs) == 24
    assert "\n".join(found.jobs.notes).count("in several units, each read by its size: 1 of 2") == 2 * n


def test_memory_is_that_of_hosts_in_the_unit_of_the_system_that_wrote_it(tmp_path):
    """HTCondor's RequestMemory is in MiB; memory of GPUs is none of a host's."""
    jobs = imported(tmp_path, "id,submit,duration,RequestMemory,gpus\n1,0,60,65536,1\n").jobs
    assert jobs.gang_demand[0, 2] == 64
    jobs = imported(tmp_path, "id,submit,duration,gpu_mem_gb,gpus\n1,0,60,640,8\n").jobs
    assert jobs.gang_demand[0, 2] == 0


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        ("31.03.2024 00:30", "31.03.2024 10:00", True),
        ("3/14/2024 9:05 PM", "3/2/2024 12:05 AM", True),
        ("2024/03/31-08:00:00", "2024/03/31-09:00:00", True),
        ("Mar 31 2024 10:00", "Mar 31 2024 11:00", True),
        ("2024-03-01 10:00:00 UTC", "2024-03-01 11:00:00 UTC", False),
        ("2024-03-01 10:00:00 GMT", "2024-03-01 11:00:00 GMT", False),
        ("2024-03-01 10:00:00+01", "2024-03-01 11:00:00+02", False),
        ("1709280000", "1709283600", False),
    ],
)
def test_times_without_a_time_zone_are_told_however_they_are_written(tmp_path, first, second, told):
    jobs = imported(tmp_path, f"id,submit,duration,gpus\n1,{first},60,1\n2,{second},60,1\n").jobs
    assert any("times without a time zone" in note for note in jobs.notes) == told


def test_rows_that_sum_up_others_are_no_jobs(tmp_path):
    """16 + 8 + 8 GPU-hours; the name alone makes no sum."""
    at = "2024-03-01 {}:00,2024-03-01 {}:00".format
    rows = [f"j1,{at(10, 12)},16", f"j2,{at(11, 13)},8", "Subtotal a,,,24", f"j3,{at(11, 13)},8"]
    rows += [f"total loss,{at(11, 12)},1", f"Total,{at(10, 13)},32"]
    found = imported(tmp_path, "job_id,start,end,gpu_hours\n" + "\n".join(rows) + "\n")
    assert found.jobs.id.tolist() == ["j1", "j2", "j3", "total loss"]
    assert gpu_hours(found.jobs) == 33
    assert found.ledger.left_out == {"that sum up others (line 4: Subtotal a)": 2}
    unnamed = imported(tmp_path, "what,submit,duration_h,gpus\na,0,1,4\nb,0,2,4\nSumme,0,3,8\n")
    assert gpu_hours(unnamed.jobs) == 12


@pytest.mark.parametrize("span", ["1h30m", "0 days 01:30:00", "90m", "01:30:00", "5400", "1h 30min", "5400 second(s)"])
def test_spans_are_read_as_people_write_them(tmp_path, span):
    assert imported(tmp_path, f"id,submit,duration,gpus\n1,0,{span},1\n").jobs.duration_s.tolist() == [5400]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("03/31/2024 10:00", "04/01/2024 10:00"),
        ("31/03/2024 10:00", "01/04/2024 10:00"),
        ("01.03.2024 10:00", "02.03.2024 10:00"),  # with dots, days come first
    ],
)
def test_days_and_months_are_told_apart_where_the_column_does(tmp_path, first, second):
    jobs = imported(tmp_path, f"id,submit,duration,gpus\n1,{first},60,1\n2,{second},60,1\n").jobs
    assert jobs.arrival_s.tolist() == [0, 86_400]
    with pytest.raises(TraceError, match="expected a time like"):
        imported(tmp_path, "id,submit,duration,gpus\n1,03/04/2024 10:00,60,1\n", told="arrival=submit")


def test_newlines_in_quotes_and_a_repeated_header_are_no_jobs(tmp_path):
    text = (
        'id,submit,duration,gpus,model\n1,0,3600,4,"bert, large\nv2"\nid,submit,duration,gpus,model\n2,0,3600,4,gpt\n'
    )
    found = imported(tmp_path, text)
    assert found.jobs.id.tolist() == ["1", "2"]
    assert found.ledger.left_out == {"headers once more": 1}


# What a file is


@pytest.mark.parametrize(
    "header",
    [
        "job_id,user,num_gpus,submit_time,duration,state",  # six columns, as Alibaba's job table
        "id,user,gpus,cpus,mem_gb,queue,submit,start,end,duration_h,state,node,exit",  # thirteen, as Google's events
        "a\tb\tgpus\tsubmit\tduration\tuser\tmodel",  # seven by tabs, as Gavel's older traces
        "a\tb\tgpus\tsubmit\tduration\tuser\tmodel\tx\ty\tz",
        "JobID,User,Submit,Start,End,NGPUs,Node",  # two names of sacct, and GPUs of one's own
        "id,arrival_s,gpus,length,owner",  # a name of labkit's own among others
    ],
)
def test_a_table_of_ones_own_is_claimed_by_no_other_format(tmp_path, header):
    path = put(
        tmp_path, "x", f"{header}\n" + ("\t" if "\t" in header else ",").join("1" for _ in header.split(",")) + "\n"
    )
    with pytest.raises(TraceError, match=r"It is a table with a header.*labkit traces import"):
        sniff(path)


def test_a_guess_says_why_and_which_comes_next_and_a_refusal_that_it_can_be_overruled(tmp_path):
    path = put(tmp_path, "x.csv", "j1,i1,u1,Terminated,100.0,200.0\n")
    best = explained(path)[0]
    assert (best.format, best.why) == (
        "alibaba-2020",
        "6 cells by commas, with numbers where start_time, end_time stand",
    )
    with pytest.raises(TraceError, match=r"Taken for alibaba-2020: 6 cells.*Say otherwise with --format"):
        read(path)


SWF = """; Version: 2.2
; UnixStartTime: 1000000000
1   0 10 3600  4 -1 -1 4 7200 -1 1 1 1 -1 1 1 -1 -1
2 100  0   -1 -1 -1 -1 8 7200 -1 5 2 1 -1 1 1 -1 -1
3 200 20  600 -1 -1 -1 6  900 -1 0 2 1  3 1 1  1 60
3 200 20  300 -1 -1 -1 6  900 -1 2 2 1  3 1 1  1 60
"""


def test_the_standard_workload_format_is_read_with_its_signs_for_not_known(tmp_path):
    found = ledgered(put(tmp_path, "x.swf", SWF))
    assert sniff(tmp_path / "x.swf") == "swf"
    assert found.jobs.id.tolist() == ["1", "3"]
    assert found.jobs.gpus.tolist() == [4, 6]
    assert found.jobs.arrival_s.tolist() == [0, 200]
    assert list(found.ledger.left_out.values()) == [1, 1]  # a part of a job that has its own line; a job that never ran
    assert found.segments.start_s.tolist() == [10, 220]


# Checking a trace


def test_occupancy_is_what_segments_hold_and_its_area_is_their_gpu_hours():
    held = Segments.of([2, 4, 1, 3], [0, 1800, 7200, np.nan], [3600, 3600, 10800, 5])
    moments, in_use = occupied(held)
    assert (moments.tolist(), in_use.tolist()) == ([0, 1800, 3600, 7200, 10800], [2, 6, 0, 1, 0])
    rows = occupancy(held, n_bins=3)
    assert rows["mean"].tolist() == pytest.approx([4, 0, 1])
    assert rows["peak"].tolist() == [6, 0, 1]
    assert beyond(held, n_gpus=4) == (pytest.approx(1 / 6), pytest.approx(1.0))


def test_check_shows_ledger_contradictions_and_that_a_trace_does_not_fit_its_machines(tmp_path):
    rows = [row(1, gpus=4), row(1, gpus=4), row(2, gpus=2, elapsed="02:00:00"), row(3, gpus=2, submit=9)]
    path = put(tmp_path, "x.txt", "\n".join([HEADER, *rows]) + "\n")
    text = check(path, cluster=build("no_network(1)"))
    assert "rows      4 rows = 3 jobs + 1 repeated, the same in every column" in text
    assert "GPU-hours 14 in the file = 10 in jobs + 4 repeated, the same in every column." in text
    assert "check     1 rows start before they were submitted." in text
    assert "check     Elapsed differs from End - Start in 1 rows, in 1 by one hour (a change of clocks, say)" in text
    assert "fit       more GPUs in use than" in text
