"""What batch systems print of their jobs beside accounting: `scontrol show job`, `qstat -f`, and Slurm before 20.11."""

from __future__ import annotations

import json

import pytest

from labkit.workloads import read
from labkit.workloads.readers import ledgered

from .test_exports import put
from .test_formats import assert_read, pbs
from .test_ledger import HEADER, row

JOB = """JobId=7 {array}JobName=my job
   UserId=ada(1001) GroupId=lab(100) MCS_label=N/A
   Priority=5 Nice=0 Account=proj QOS=normal
   JobState={state} Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime={ran} TimeLimit=1-00:00:00 TimeMin=N/A
   SubmitTime=2024-03-04T08:00:00 EligibleTime=2024-03-04T08:00:00
   StartTime={start} EndTime={end} Deadline=N/A
   Partition=gpu AllocNode:Sid=login:77
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-2]
   NumNodes=2 NumCPUs=8 NumTasks=2 CPUs/Task=4 ReqB:S:C:T=0:0:*:*
   {tres}
   Features=big DelayBoot=00:00:00
   TresPerNode=gres:gpu:2
"""


def shown(
    *, array="", state="COMPLETED", ran="02:00:00", start="2024-03-04T09:00:00", end="2024-03-04T11:00:00",
    tres="TRES=cpu=8,mem=8G,node=2,billing=8,gres/gpu=4",
):  # fmt: skip
    return JOB.format(array=array, state=state, ran=ran, start=start, end=end, tres=tres)


@pytest.mark.parametrize("in_one_line", [False, True])
@pytest.mark.parametrize(
    ("job", "gpu_hours", "name"),
    [
        (shown(), 8.0, "7"),
        (shown(array="ArrayJobId=6 ArrayTaskId=3 ", state="RUNNING", end="2024-03-05T09:00:00"), 8.0, "6_3"),
        (shown(tres="ReqTRES=cpu=8,node=2,gres/gpu=2\n   AllocTRES=cpu=8,node=2,gres/gpu:a100=4"), 8.0, "7"),
        (shown(tres="TRES=cpu=8,mem=8G,node=2,billing=8"), 8.0, "7"),  # GPUs of each node, where accounting has none
    ],
)
def test_jobs_as_scontrol_shows_them_have_their_gpus_for_as_long_as_they_ran(
    tmp_path, job, gpu_hours, name, in_one_line
):
    waits = shown(state="PENDING", ran="00:00:00", start="2024-03-09T09:00:00", end="2024-03-10T09:00:00")
    text = "\n".join(" ".join(each.split()) if in_one_line else each for each in (job, waits))
    found = assert_read(put(tmp_path, "jobs.txt", text), "sacct", jobs=1, gpu_hours=gpu_hours)
    jobs = found.jobs
    assert (jobs.id[0], jobs.users[jobs.user[0]], jobs.models[jobs.model[0]]) == (name, "ada", "my job")
    assert (jobs.limit_s[0], jobs.nodes[0], jobs.constraint[0]) == (86_400, 2, "big")
    assert found.ledger.left_out == {"never started (pending, or cancelled before)": 1}


def test_the_throttle_of_an_array_is_read(tmp_path):
    tasks = [shown(array=f"ArrayJobId=6 ArrayTaskId={i} ArrayTaskThrottle=2 ") for i in (1, 2, 3)]
    found = read(
        put(tmp_path, "jobs.txt", "\n".join(task.replace("JobId=7", f"JobId=1{i}", 1) for i, task in enumerate(tasks)))
    )
    assert found.at_most.tolist() == [2, 2, 2]


def test_the_log_of_completed_jobs_names_some_attributes_otherwise(tmp_path):
    text = (
        "JobId=11 UserId=ada(1001) GroupId=lab(1001) Name=my job JobState=COMPLETED Partition=gpu TimeLimit=60 "
        "StartTime=2024-03-04T10:00:00 EndTime=2024-03-04T11:00:00 NodeList=n1 NodeCnt=1 ProcCnt=8 WorkDir=/ "
        "ReservationName= Tres=cpu=8,node=1,gres/gpu=2 Account=lab QOS=normal SubmitTime=2024-03-04T09:00:00 \n"
    )
    found = assert_read(put(tmp_path, "jobcomp.log", text), "sacct", jobs=1, gpu_hours=2.0)
    jobs = found.jobs
    assert (jobs.models[jobs.model[0]], jobs.limit_s[0], jobs.recorded_start_s[0]) == ("my job", 3600, 3600)


QSTAT = """Job Id: 12.srv
    Job_Name = train
    Job_Owner = ada@login
    resources_used.walltime = 02:00:00
    job_state = {state}
    queue = gpu
    ctime = Mon Mar  4 08:00:00 2024
    exec_host = n1/0*8+
\tn2/0*8
    exec_vnode = (n1:ncpus=8:ngpus=2)+(n2:ncpus=8:ngp
\tus=2)
    Resource_List.ngpus = 1
    Resource_List.walltime = 04:00:00
    stime = Mon Mar  4 09:00:00 2024

Job Id: 13.srv
    Job_Owner = ada@login
    job_state = Q
    ctime = Mon Mar  4 08:00:00 2024
    Resource_List.ngpus = 1
"""


@pytest.mark.parametrize("state", ["F", "R"])
def test_jobs_as_qstat_shows_them_have_their_gpus_for_as_long_as_they_ran(tmp_path, state):
    found = assert_read(put(tmp_path, "jobs", QSTAT.format(state=state)), "pbs", jobs=1, gpu_hours=8.0)
    jobs = found.jobs
    assert (jobs.id[0], jobs.users[jobs.user[0]], jobs.recorded_hosts[0]) == ("12", "ada", "n1,n2")
    assert (jobs.limit_s[0], jobs.recorded_start_s[0]) == (4 * 3600, 3600)
    assert found.ledger.left_out == {"never started (queued or held)": 1}
    assert any("not ended" in note for note in jobs.notes) == (state == "R")


def test_qstat_in_json_says_the_same(tmp_path):
    job = {"Job_Name": "train", "Job_Owner": "ada@login", "job_state": "F", "ctime": "Mon Mar  4 08:00:00 2024",
           "stime": "Mon Mar  4 09:00:00 2024", "resources_used": {"walltime": "02:00:00"},
           "Resource_List": {"ngpus": 4, "nodect": 1}}  # fmt: skip
    text = json.dumps({"timestamp": 1, "pbs_version": "20", "pbs_server": "srv", "Jobs": {"12.srv": job}}, indent=1)
    assert_read(put(tmp_path, "jobs.json", text), "pbs", jobs=1, gpu_hours=8.0)


def test_the_record_of_a_whole_array_of_pbs_is_no_job(tmp_path):
    lines = [pbs(job, "Resource_List.ngpus=4") for job in ("13[1]", "13[2]", "13[]")]
    found = assert_read(put(tmp_path, "x", "\n".join(lines)), "pbs", jobs=2, gpu_hours=8.0)
    assert found.ledger.left_out == {"of arrays, whose tasks count each for itself": 1}


@pytest.mark.parametrize("asked", ["Resource_List.nodes=1 Resource_List.gpus=2", "Resource_List.gpu=2"])
def test_gpus_that_a_site_tells_alone_are_read(tmp_path, asked):
    assert_read(put(tmp_path, "x", pbs(13, asked)), "pbs", jobs=1, gpu_hours=2.0)


def old(header, *rows):
    begun = "2024-03-04T08:00:00|2024-03-04T08:00:00|2024-03-04T09:00:00|01:00:00|COMPLETED"
    lines = [f"JobID|JobName|User|Submit|Start|End|Elapsed|State|{header}"]
    return "\n".join([*lines, *(f"{job}|train|u|{begun}|{more}" for job, more in rows), ""])


@pytest.mark.parametrize(
    ("text", "gpu_hours", "told"),
    [
        (old("AllocGRES|NNodes", ("1", "gpu:4|2"), ("1.batch", "gpu:4|1")), 4.0, "AllocGRES;"),
        (old("ReqGRES|NNodes", ("1", "gpu:a100:4|2"), ("1.batch", "gpu:4|1")), 8.0, "ReqGRES x nodes;"),
        (old("ReqGRES", ("1", "PER_NODE:gpu:2")), 2.0, "of which each has one where NNodes is not there"),
        (old("AllocTRES|ReqGRES", ("1", "cpu=8,mem=8G,node=2|gpu:4")), 8.0, "ReqGRES x nodes;"),
    ],
)
def test_slurm_before_20_11_tells_gpus_of_the_job_or_of_each_node(tmp_path, text, gpu_hours, told):
    found = assert_read(put(tmp_path, "old.txt", text), "sacct", jobs=1, gpu_hours=gpu_hours)
    assert any(told in note for note in found.jobs.notes)


def test_an_export_with_raw_ids_alone_counts_no_steps(tmp_path):
    text = "\n".join([HEADER.replace("JobID", "JobIDRaw"), row(1), row("1.batch"), row(2), ""])
    assert_read(put(tmp_path, "raw.txt", text), "sacct", jobs=2, gpu_hours=2.0)


def test_rows_of_other_users_under_one_number_are_other_jobs_though_they_began_at_once(tmp_path):
    text = "\n".join([HEADER, row(1), HEADER, row(1, user="v", name="eval", gpus=4), ""])  # of two clusters
    found = assert_read(put(tmp_path, "both.txt", text), "sacct", jobs=2, gpu_hours=5.0)
    assert found.jobs.id.tolist() == ["1", "1#2"]


def test_times_without_a_year_are_refused_and_named(tmp_path):
    text = "\n".join([HEADER, row(1).replace("2024-03-04T08:00:00", "Mar 04 08:00"), row(2), row(3), ""])
    notes = ledgered(put(tmp_path, "x.txt", text)).jobs.notes
    assert any("Submit is 'Mar 04 08:00'" in note for note in notes)
