"""What sites export beside Slurm's text and lists of pods: each format with its hours, and nothing wrong in silence.

Columns and units are those that the sources describe (docs/trace-formats.md names them); the files are made here.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from labkit.cli.data import traces_list
from labkit.core.device_names import is_known, part_of, requested_gpus, slice_of
from labkit.core.errors import TraceError
from labkit.topology.machine_files import inventory, machines
from labkit.workloads.readers import FORMATS, ledgered, sniff
from labkit.workloads.readers.published import TABLES
from labkit.workloads.trace_check import check

from .exports import pod
from .test_exports import put
from .test_ledger import HEADER, imported, row, slurm

T = 1709287200
HOUR = T + 3600


def hours(found):
    return float((found.jobs.gpus * found.jobs.duration_s).sum() / 3600)


def assert_read(path, name, *, jobs, gpu_hours):
    """Assert that a file is taken for a format, has so many jobs and GPU-hours, and that its ledger is balanced."""
    assert sniff(path) == name
    found = ledgered(path)
    assert (len(found.jobs), hours(found)) == (jobs, pytest.approx(gpu_hours))
    assert found.ledger.unexplained_hours == 0
    assert f"GPU-hours {found.ledger.file_hours:,.6g} in the file" in check(path)
    return found


# Tables that are published


PUBLISHED = {
    "acme": (
        "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,type,state,submit_time,start_time,end_time,duration,queue,"
        "gpu_time\n"
        "a,u1,2,16,64,100,Other,FAILED,2023-03-01 00:00:00+08:00,2023-03-01 00:01:00+08:00,2023-03-01 01:01:00+08:00,"
        "3600,60,57600\n"
        "b,u2,1,0,8,10,Other,COMPLETED,2023-03-01 00:00:00+08:00,2023-03-01 00:01:00+08:00,2023-03-01 01:01:00+08:00,"
        "3600,60,0\n",
        1, 16.0,
    ),
    "alibaba-spot": (
        "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
        "1,13,A10,20,1,1,0,3600,HP\n2,57,A100-SXM4-80GB,15,2,16,10,1800,Spot\n",
        2, 17.0,
    ),
    "alibaba-2025": (
        "instance_sn,role,app_name,cpu_request,gpu_request,memory_request,creation_time,scheduled_time,deletion_time\n"
        "i0,HN,app_0,12,1,120.0,100.0,200.0,3800.0\ni1,CN,app_0,64,0,320.0,100.0,200.0,3800.0\n"
        "i2,HN,app_0,12,1,120.0,,,\n",
        1, 1.0,
    ),
    "elasticflow": (
        "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n0,100,2011,cifar10,7300,4096,2,3600\n",
        1, 2.0,
    ),
    "tiresias": (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n0,4,0,606,vgg19,1800,30\n",
        1, 2.0,
    ),
    "lucid": (
        "job_id,user,vc,jobname,gpu_num,cpu_num,state,submit_time,duration,dataset,model,batchsize,amp,speed,gpu_util,"
        "gmem_util,gmem\n7,u,vcA,train,2,8,COMPLETED,60,3600,CIFAR-10,ResNet18,64,1,9.0,50,20,4000\n",
        1, 2.0,
    ),
}  # fmt: skip
"""A file of each published table, its jobs, and its GPU-hours."""


@pytest.mark.parametrize("name", TABLES)
def test_a_published_table_is_read_by_its_header(tmp_path, name):
    text, jobs, gpu_hours = PUBLISHED[name]
    assert_read(put(tmp_path, "x.csv", text), name, jobs=jobs, gpu_hours=gpu_hours)


def test_what_a_published_table_tells_besides_is_kept(tmp_path):
    acme = ledgered(put(tmp_path, "acme.csv", PUBLISHED["acme"][0])).jobs
    assert acme.worker_demand[0].tolist() == [1.0, 4.0, pytest.approx(200 / 16)]  # memory of two nodes
    spot = ledgered(put(tmp_path, "spot.csv", PUBLISHED["alibaba-spot"][0])).jobs
    assert spot.device_type.tolist() == ["A10", "A100-SXM4-80GB"]
    assert ledgered(put(tmp_path, "ef.csv", PUBLISHED["elasticflow"][0])).jobs.slo_s.tolist() == [7200.0]


def test_a_workload_of_pollux_has_no_durations_and_says_so(tmp_path):
    path = put(tmp_path, "w.csv", "name,time,application,num_replicas,batch_size\nbert-0,9.5,bert,4,320\n")
    found = ledgered(path)
    assert (sniff(path), found.jobs.total_steps.tolist(), found.jobs.n_workers.tolist()) == ("pollux", [2.0], [4])
    assert any("no duration in the file" in note for note in found.jobs.notes)


def test_google_s_events_of_2019_have_other_numbers_than_those_of_2011(tmp_path):
    def event(time, kind):
        asked = {"cpus": 0.5, "memory": 0.25}
        return json.dumps({"time": str(time), "type": kind, "collection_id": "33", "instance_index": "0",
                           "resource_request": asked})  # fmt: skip

    text = "\n".join([event(1_000_000, "0"), event(2_000_000, "3"), event(62_000_000, "6")])
    for n, each in enumerate((text, text.replace('"3"', '"SCHEDULE"').replace('"6"', '"FINISH"'))):
        path = put(tmp_path, f"{n}.json", each)
        jobs = ledgered(path).jobs
        assert (sniff(path), jobs.duration_s.tolist()) == ("google-2019", [60.0])
        assert jobs.worker_demand[0].tolist() == [0.0, 16.0, 16.0]


def test_sets_of_allocations_are_no_jobs(tmp_path):
    for kinds in ((0, 1), ("JOB", "ALLOC_SET")):
        lines = [
            f"{time},{event},{job},{kinds[job - 1]},0"
            for job in (1, 2)
            for time, event in ((1, 0), (2, 3), (60_000_002, 6))
        ]
        text = "\n".join(["time,type,collection_id,collection_type,instance_index", *lines])
        jobs = ledgered(put(tmp_path, "x.csv", text)).jobs
        assert jobs.id.tolist() == ["1"]
        assert any("1 sets of allocations" in note for note in jobs.notes)


# Accounting


DB = ("job_db_inx", "deleted", "job_name", "id_assoc", "id_array_job", "id_array_task", "id_job", "id_user",
      "het_job_id", "het_job_offset", "nodes_alloc", "partition", "state", "timelimit", "time_submit", "time_start",
      "time_end", "time_suspended", "tres_alloc")  # fmt: skip
NONE = 2**32 - 2


def db_row(job, *, start=T, end=HOUR, submit=T, gpus=2, array=(0, NONE), het=(0, NONE), state=3, deleted=0, name="a"):
    tres = f"1=8,2=64000,4=1,1001={gpus},1002={gpus}"
    cells: list = [job, deleted, name, 7, *array, job, 1000, *het, 1, "gpu", state, 1440, submit, start, end, 0, tres]
    return "(" + ",".join(f"'{c}'" if isinstance(c, str) else str(c) for c in cells) + ")"


def dump(*rows, cluster="alpha"):
    def table(name, columns, values):
        body = ",\n".join(f"  `{column}` int" for column in columns)
        made = f"CREATE TABLE `{name}` (\n{body},\n  PRIMARY KEY (`x`)\n) ENGINE=InnoDB;\n"
        return f"{made}INSERT INTO `{name}` VALUES {values};\n"

    tres = "(1,0,1,'cpu',''),(1,0,2,'mem',''),(1,0,4,'node',''),(1,0,1001,'gres','gpu'),(1,0,1002,'gres','gpu:a100')"
    return (
        "-- MySQL dump 10.13\n" + table("tres_table", ("creation_time", "deleted", "id", "type", "name"), tres)
        + table(f"{cluster}_assoc_table", ("id_assoc", "user"), "(7,'ada')")
        + table(f"{cluster}_job_table", DB, ",".join(rows))
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "jobs", "gpu_hours"),
    [
        ([db_row(1, name="it\\'s, (x);"), db_row(2, deleted=1)], 1, 2.0),
        ([db_row(11, array=(10, 1)), db_row(12, array=(10, 2))], 2, 4.0),
        ([db_row(11, het=(11, 0)), db_row(12, het=(11, 1), gpus=1)], 1, 3.0),
        ([db_row(9, state=8 | 0x400), db_row(9, submit=HOUR, start=HOUR + 60, end=HOUR + 3660)], 1, 4.0),
        ([db_row(1), db_row(2, start=0, state=4)], 1, 2.0),
    ],
    ids=["quotes and deleted rows", "array", "heterogeneous", "requeued", "cancelled before its start"],
)
def test_a_dump_of_slurmdbd_is_read_as_sacct_shows_it(tmp_path, rows, jobs, gpu_hours):
    found = assert_read(put(tmp_path, "x.sql", dump(*rows)), "slurmdb", jobs=jobs, gpu_hours=gpu_hours)
    assert found.jobs.users == ("ada",)
    assert set(found.jobs.measured_on) == {"a100"}


def test_a_table_of_slurmdbd_without_its_resources_says_which_it_took_for_gpus(tmp_path):
    header = "id_job,time_submit,time_start,time_end,state,gres_alloc,tres_alloc\n"
    path = put(tmp_path, "x.csv", f'{header}1,{T},{T},{HOUR},3,gpu:2,"1=40,1001=9,1002=2"\n')
    found = assert_read(path, "slurmdb", jobs=1, gpu_hours=2.0)
    assert any("resource 1002 of tres_alloc counts as GPUs (by gres_alloc" in note for note in found.jobs.notes)


def pbs(job, asked, *, kind="E", start=T, end=HOUR):
    return (
        f"04/01/2024 00:00:01;{kind};{job}.srv;user=ada queue=gpu jobname=train ctime={T} qtime={T} etime={T} "
        f"start={start} exec_host=n1/0*8+n2/0*8 {asked} Resource_List.walltime=02:00:00 end={end} Exit_status=0"
    )


@pytest.mark.parametrize(
    ("asked", "gpus"),
    [
        ("Resource_List.ngpus=4", 4),
        ("Resource_List.select=2:ncpus=8:ngpus=4", 8),
        ("Resource_List.select=ncpus=8:ngpus=1", 1),
        ("Resource_List.nodes=2:ppn=32:gpus=2", 4),
        ("exec_vnode=(n1:ncpus=8:ngpus=4)+(n2:ncpus=8:ngpus=4) Resource_List.ngpus=2", 8),
    ],
)
def test_pbs_and_torque_tell_gpus_in_several_ways(tmp_path, asked, gpus):
    found = assert_read(put(tmp_path, "x", pbs(12, asked)), "pbs", jobs=1, gpu_hours=float(gpus))
    assert (found.jobs.recorded_hosts[0], found.jobs.limit_s[0], found.jobs.id[0]) == ("n1,n2", 7200.0, "12")


def test_runs_of_a_job_of_pbs_are_one_job_and_other_events_are_counted(tmp_path):
    asked = "Resource_List.ngpus=4"
    queued = "04/01/2024 00:00:01;Q;12.srv;queue=gpu"
    again = pbs(12, asked, start=HOUR + 60, end=HOUR + 3660)
    lines = [queued, pbs(12, asked, kind="R"), pbs("13[1]", asked), pbs("13[2]", asked), again]
    found = assert_read(put(tmp_path, "x", "\n".join(lines)), "pbs", jobs=3, gpu_hours=16.0)
    assert found.ledger.left_out == {"of other events (Q)": 1}


def torque(kind, date, *, start=0, ready=T):
    """Return a record of Torque on 1 March 2024, whose dates are two hours ahead of UTC."""
    told = (
        f"user=ada queue=q jobname=t ctime={T} qtime={ready} etime={ready} start={start} Resource_List.nodes=1:gpus=2"
    )
    if kind == "E":
        told += f" end={start + 7200} Exit_status=0"
    return f"03/01/2024 {date};{kind};500.srv;{told * (kind in 'SE')}"


def test_a_job_of_torque_that_is_run_again_has_both_runs_and_was_ready_at_first(tmp_path):
    first, again = torque("S", "12:00:00", start=T), T + 2 * 3600
    last = [torque("S", "14:00:00", start=again, ready=HOUR), torque("E", "16:00:00", start=again, ready=HOUR)]
    found = assert_read(
        put(tmp_path, "x", "\n".join([first, torque("R", "13:00:00"), *last])), "pbs", jobs=1, gpu_hours=6.0
    )
    assert np.isnan(found.jobs.begin_s).all()  # etime was an hour later when it ran again
    unknown = assert_read(put(tmp_path, "y", "\n".join([first, *last])), "pbs", jobs=1, gpu_hours=4.0)
    assert any("without a known end" in reason for reason in unknown.ledger.left_out)
    assert np.isnan(unknown.jobs.begin_s).all()


@pytest.mark.parametrize(
    ("asked", "cores"),
    [
        ("Resource_List.nodes=2:ppn=8:gpus=2 total_execution_slots=16", 16),
        ("Resource_List.nodes=h1:ppn=2:gpus=1+h2:ppn=6:gpus=3 Resource_List.ncpus=1", 8),
        ("Resource_List.select=2:ncpus=4:ngpus=2 Resource_List.ncpus=8", 8),
        ("Resource_List.ngpus=4", 16),  # exec_host=n1/0*8+n2/0*8
    ],
)
def test_pbs_and_torque_tell_cores_in_several_ways(tmp_path, asked, cores):
    jobs = ledgered(put(tmp_path, "x", pbs(12, asked))).jobs
    assert (jobs.n_workers[0], jobs.n_workers[0] * jobs.worker_demand[0, 1]) == (4, cores)


def test_hosts_of_lsf_may_stand_with_their_slots(tmp_path):
    jobs = ledgered(put(tmp_path, "x", lsf(10, hosts=("4*h1", "4*h2")))).jobs
    assert (jobs.n_workers[0], jobs.n_workers[0] * jobs.worker_demand[0, 1], jobs.nodes[0]) == (4, 8, 2)


def lsf(job, *, start=T, hosts=("h1", "h1"), needs="rusage[ngpus_physical=2.00]", status=64, index=0):
    quoted = " ".join(f'"{host}"' for host in hosts)
    usage = " ".join(["-1"] * 19)
    return (
        f'"JOB_FINISH" "10.1" {HOUR} {job} 1001 33554438 2 {T} 0 0 {start} "ada" "gpu" "" "" "" "login" "/" "" "" "" '
        f'"f" 0 {len(hosts)} {quoted} {status} 60.0 "train" "python ""a b""" {usage} "" "proj" 0 1 "" "" {index} 1 1 '
        f'"" "" "{needs}"'
    )


@pytest.mark.parametrize(
    ("given", "jobs", "gpu_hours"),
    [
        ([{}], 1, 2.0),
        ([{"hosts": ("h1", "h1", "h2", "h2")}], 1, 4.0),
        ([{"index": 1}, {"index": 2}], 2, 4.0),
        ([{"needs": "1*{rusage[ngpus_physical=2]} + 4*{rusage[ngpus_physical=1]}"}], 1, 6.0),
        ([{}, {"start": 0, "hosts": (), "status": 32}], 1, 2.0),
        ([{"needs": "select[ngpus>0] rusage[ngpus_excl_p=2]"}], 1, 2.0),
    ],
    ids=["one host", "two hosts", "array", "compound requirement", "never started", "by mode"],
)
def test_lsf_tells_gpus_of_each_host(tmp_path, given, jobs, gpu_hours):
    text = "\n".join(lsf(10 + i * (not each.get("index")), **each) for i, each in enumerate(given))
    assert_read(put(tmp_path, "x", text), "lsf", jobs=jobs, gpu_hours=gpu_hours)


def test_a_record_that_is_cut_off_is_told(tmp_path):
    with pytest.raises(TraceError, match=r"cut off \(the first on line 1: 13 fields\)"):
        ledgered(put(tmp_path, "x", " ".join(lsf(10).split()[:13])))


# Objects of Kubernetes


def template(**limits):
    return {"spec": {"containers": [{"resources": {"limits": limits or {"nvidia.com/gpu": "2"}}}]}}


def thing(kind, spec, *, name="tj", status=None, owners=()):
    ran = {"startTime": "2024-03-04T08:00:00Z", "completionTime": "2024-03-04T09:00:00Z"}
    metadata = {"name": name, "namespace": "lab", "uid": f"{kind}-{name}", "creationTimestamp": "2024-03-04T07:00:00Z",
                "ownerReferences": list(owners)}  # fmt: skip
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status or ran}


def when(kind, at, **more):
    return {"type": kind, "status": "True", "lastTransitionTime": f"2024-03-04T{at}Z", **more}


FINISHED = {"conditions": [when("Admitted", "08:00:00"), when("Finished", "09:00:00")]}
OBJECTS = [
    (thing("PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"replicas": 3, "template": template()}}}), 6.0),
    (thing("TFJob", {"tfReplicaSpecs": {"PS": {"replicas": 1, "template": template(cpu="4")},
                                        "Worker": {"replicas": 2, "template": template()}}}), 4.0),
    (thing("MPIJob", {"mpiReplicaSpecs": {"Launcher": {"template": template(cpu="1")},
                                          "Worker": {"replicas": 2, "template": template()}}}), 4.0),
    (thing("ElasticJob", {"replicaSpecs": {"worker": {"replicas": 4, "template": template()}}}), 8.0),
    (thing("Job", {"parallelism": 2, "completions": 2, "template": template()}), 4.0),
    (thing("Job", {"tasks": [{"name": "w", "replicas": 2, "template": template()}]},
           status={"state": {"phase": "Completed", "lastTransitionTime": "2024-03-04T09:00:00Z"},
                   "conditions": [{"status": "Running", "lastTransitionTime": "2024-03-04T08:00:00Z"}]}), 4.0),
    (thing("JobSet", {"replicatedJobs": [{"name": "w", "replicas": 2, "template": {
        "spec": {"parallelism": 2, "template": template()}}}]}), 8.0),
    (thing("Workload", {"queueName": "q", "podSets": [{"name": "main", "count": 2, "template": template()}]},
           status=FINISHED), 4.0),
    (thing("TrainJob", {"trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": "8"}}}}), 16.0),
    (thing("RayJob", {"rayClusterSpec": {"headGroupSpec": {"template": template(cpu="4")}, "workerGroupSpecs": [
        {"groupName": "g", "replicas": 2, "template": template()}]}}), 4.0),
    (thing("RayJob", {"rayClusterSpec": {"workerGroupSpecs": [
        {"groupName": "g", "replicas": 2, "numOfHosts": 4, "template": template()}]}}), 16.0),
    (thing("JobSet", {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": template()}}}]},
           status={"conditions": [when("Completed", "09:00:00")]}), 4.0),
    (thing("PodGroup", {"minMember": 4, "minResources": {"nvidia.com/gpu": "8", "cpu": "16"}}), 8.0),
    (thing("RayCluster", {"workerGroupSpecs": [
        {"groupName": "g", "minReplicas": 2, "template": template()},
        {"groupName": "off", "replicas": 4, "suspend": True, "template": template()},
        {"groupName": "none", "replicas": 0, "template": template()}]}), 4.0),
    (thing("MPIJob", {"gpus": 16, "template": template(cpu="4")}), 16.0),  # of the first version
    (thing("Workload", {"podSets": [{"name": "main", "count": 2, "template": template()}]},
           status={**FINISHED, "accumulatedPastExexcutionTimeSeconds": 3600}), 8.0),  # as Kueue spells it
    (thing("Workload", {"podSets": [{"name": "main", "count": 2, "template": template()}]},
           status={"accumulatedPastExecutionTimeSeconds": 1800, "conditions": [
               when("Evicted", "09:00:00"), when("Admitted", "09:00:00", status="False")]}), 2.0),
    (thing("Workload", {"podSets": [{"name": "main", "count": 2, "template": template()}]},  # left in this state
           status={"conditions": [when("Admitted", "08:00:00"), when("Evicted", "09:00:00")]}), 4.0),
    (thing("Workload", {"podSets": [{"name": "main", "count": 2, "template": template()}]}, status={"conditions": [
        when("Admitted", "09:00:01", status="False"), when("PodsReady", "08:00:00"), when("Finished", "09:00:00")]}),
     4.0),
    (thing("Workload", {"podSets": [{"name": "main", "count": 2, "template": template()}]}, status={"conditions": [
        when("Admitted", "09:00:01", status="False"), when("Finished", "09:00:00")]}), 8.0),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "gpu_hours"), OBJECTS, ids=[entry["kind"] for entry, _ in OBJECTS])
def test_an_object_that_tells_of_pods_is_their_job(tmp_path, entry, gpu_hours):
    path = put(tmp_path, "x.json", json.dumps({"apiVersion": "v1", "items": [entry]}))
    found = assert_read(path, "kubernetes", jobs=1, gpu_hours=gpu_hours)
    assert found.jobs.id.tolist() == ["lab/tj"]
    assert any("pods are not listed of 1" in note for note in found.jobs.notes)
    over = {one["type"] for one in entry["status"].get("conditions", ()) if one.get("status") == "True"}
    guessed = over in ({"Completed"}, {"Finished"})
    assert any("start at their creation" in note for note in found.jobs.notes) == guessed
    assert not any("not ended" in note for note in found.jobs.notes)


@pytest.mark.parametrize(
    "status",
    [
        {
            "conditions": [
                when("QuotaReserved", "08:00:00", status="False"),
                when("Admitted", "08:00:00", status="False"),
            ]
        },
        {"conditions": [when("Running", "08:00:00", status="False"), when("Suspended", "08:00:00")]},
    ],
)
def test_an_object_that_waits_is_no_job(tmp_path, status):
    waits = thing("Workload", {"podSets": [{"name": "main", "count": 2, "template": template()}]}, status=status)
    text = json.dumps({"apiVersion": "v1", "items": [OBJECTS[0][0], waits | {"metadata": {
        **waits["metadata"], "name": "other"}}]})  # fmt: skip
    found = assert_read(put(tmp_path, "x.json", text), "kubernetes", jobs=1, gpu_hours=6.0)
    assert found.ledger.left_out == {"never started": 2}


SHARED = {"nvidia.com/gpu.product": "NVIDIA-A100-SHARED", "nvidia.com/gpu.replicas": "4"}
SINGLE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"}


@pytest.mark.parametrize(
    ("labels", "n", "whole", "kind"),
    [(SHARED, 32, 8, "NVIDIA-A100"), (SINGLE, 56, 8, "NVIDIA-A100-SXM4-80GB"), ({}, 8, 8, "")],
    ids=["time slicing", "MIG, single strategy", "whole"],
)
def test_a_slice_is_the_same_part_of_a_gpu_for_pods_and_for_machines(tmp_path, labels, n, whole, kind):
    node = {"kind": "Node", "metadata": {"name": "n1", "labels": labels},
            "status": {"allocatable": {"nvidia.com/gpu": str(n), "cpu": "64", "memory": "512Gi"}}}  # fmt: skip
    selects = {"nodeSelector": {key: value for key, value in labels.items() if key.endswith("product")}}
    ran = ("08:00:00", "09:00:00")
    alone = pod("alone", gpus=n, ran=ran, **selects)
    path = put(tmp_path, "list.json", json.dumps({"apiVersion": "v1", "items": [
        node, alone, pod("there", gpus=n, ran=ran, nodeName="n1")]}))  # fmt: skip
    assert ledgered(path).jobs.gpus.tolist() == [whole, whole]
    hosts = machines([path])
    assert [dict(one.gpus) for one in hosts] == [{kind: whole}]
    _, notes = inventory(hosts, source=str(path))
    assert any("kubectl get pods,nodes" in note for note in notes) == bool(labels)
    unknown = of_pods(tmp_path, alone).jobs  # MIG is told by its product, time slicing is not
    assert (unknown.device_type[0], unknown.gpus[0]) == (kind, n if labels is SHARED else whole)
    assert any("slices of GPUs" in note for note in unknown.notes) == bool(labels)


def owned(name, owner, *, gpus=2, created="08:00:00", ran=("08:00:00", "09:00:00"), labels=None, **status):
    """Return a pod of 4 March that an object made."""
    made = pod(name, gpus=gpus, created=created, ran=ran, labels=labels)
    made["status"] |= status
    made = json.loads(json.dumps(made).replace("2024-03-01", "2024-03-04"))
    made["metadata"] |= {"uid": name, "ownerReferences": [{"controller": True, **owner}]}
    return made


def of_pods(tmp_path, *entries):
    return ledgered(put(tmp_path, "x.json", json.dumps({"apiVersion": "v1", "items": list(entries)})))


EARLIER = pod("z", gpus=1, created="06:00:00", ran=("06:00:00", "06:30:00"))
EARLIER = json.loads(json.dumps(EARLIER).replace("2024-03-01", "2024-03-04"))
JOB = {"kind": "Job", "name": "tj", "uid": "Job-tj"}
KUEUE_JOB = thing("Job", {"parallelism": 1, "completions": 1, "template": template()})
KUEUE_JOB["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "lq"}
VOLCANO_JOB = thing("Job", {"queue": "lq", "tasks": [{"name": "w", "replicas": 1, "template": template()}]})
WORKLOAD = thing("Workload", OBJECTS[7][0]["spec"] | {"queueName": "lq"}, name="wl", status=FINISHED, owners=[JOB])


@pytest.mark.parametrize("maker", [KUEUE_JOB, VOLCANO_JOB, WORKLOAD], ids=["Kueue's Job", "Volcano's Job", "Workload"])
def test_a_job_arrives_when_what_made_its_pods_was_created(tmp_path, maker):
    found = of_pods(tmp_path, EARLIER, owned("w0", JOB, created="07:59:00"), maker)
    assert found.jobs.arrival_s.tolist() == [0, 3600]  # submitted at 7:00, an hour after the other
    assert found.jobs.recorded_start_s.tolist() == [0, 2 * 3600]
    assert set(found.jobs.users) == {"lab", "lq"}


def test_completions_that_follow_each_other_do_not_all_arrive_with_their_job(tmp_path):
    job = thing("Job", {"parallelism": 1, "completions": 2, "template": template()})
    later = owned("w1", JOB, created="09:00:00", ran=("09:00:00", "10:00:00"))
    assert of_pods(tmp_path, owned("w0", JOB), later, job).jobs.arrival_s.tolist() == [0, 2 * 3600]


def test_pods_of_kueue_alone_do_not_tell_how_long_they_waited_and_a_note_says_so(tmp_path):
    queue = {"kueue.x-k8s.io/queue-name": "lq"}
    told = [
        any("arrive when they were admitted" in note for note in of_pods(tmp_path, *entries).jobs.notes)
        for entries in (
            [owned("w0", JOB, labels=queue)],
            [owned("w0", JOB, labels=queue), KUEUE_JOB],
            [owned("w0", JOB, labels={**queue, "kueue.x-k8s.io/managed": "true"})],
            [pod("w0", gpus=1, ran=("08:00:00", "09:00:00"), labels=queue)],
        )
    ]
    assert told == [True, False, False, False]


@pytest.mark.parametrize(("dated", "gpu_hours"), [(True, 2 * 3 + 2), (False, 2)])
def test_a_pod_that_was_evicted_ran_until_then_and_its_job_arrives_with_it(tmp_path, dated, gpu_hours):
    moment = {"conditions": [when("DisruptionTarget", "06:00:00")]} if dated else {}
    start = {"startTime": "2024-03-04T03:00:00Z"}
    gone = owned("w0", JOB, created="02:00:00", ran=None, phase="Failed", reason="Evicted", **start, **moment)
    found = of_pods(tmp_path, EARLIER, gone, owned("w1", JOB))
    job = found.jobs.id.tolist().index("lab/tj")
    assert found.jobs.arrival_s[job] == 0
    assert found.jobs.arrival_s[1 - job] == 4 * 3600
    assert hours(found) == pytest.approx(gpu_hours + 0.5)
    assert found.ledger.unexplained_hours == 0


def test_of_an_object_its_pods_and_what_it_made_one_counts(tmp_path):
    whole = OBJECTS[0][0]
    owner = {"kind": "PyTorchJob", "name": "tj", "uid": "PyTorchJob-tj", "controller": True}
    workload = thing("Workload", OBJECTS[7][0]["spec"], name="wl", status=FINISHED, owners=[owner])
    text = json.dumps({"apiVersion": "v1", "items": [workload, whole]})
    assert_read(put(tmp_path, "a.json", text), "kubernetes", jobs=1, gpu_hours=6.0)
    listed = pod("w0", gpus=2, ran=("08:00:00", "09:00:00"))
    listed["metadata"] |= {"namespace": "lab", "ownerReferences": [owner]}
    text = json.dumps({"apiVersion": "v1", "items": [workload, whole, listed]})
    found = ledgered(put(tmp_path, "b.json", text))
    assert (len(found.jobs), hours(found)) == (1, 2.0)


def test_claims_of_devices_are_gpus_where_the_list_has_them(tmp_path):
    def claim(kind, name, request):
        devices = {"devices": {"requests": [request]}}
        spec = {"spec": devices} if kind == "ResourceClaimTemplate" else devices
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": name, "namespace": "lab"},
            "spec": spec,
        }

    def user(name, **claimed):
        made = pod(name, ran=("08:00:00", "09:00:00"))
        made["metadata"]["namespace"] = "lab"
        made["spec"]["resourceClaims"] = [{"name": "c", **claimed}]
        return made

    own = claim("ResourceClaimTemplate", "two", {"exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}})
    shared = claim("ResourceClaim", "one", {"deviceClassName": "gpu.nvidia.com"})
    pods = [
        user("a", resourceClaimTemplateName="two"),
        user("b", resourceClaimName="one"),
        user("c", resourceClaimName="one"),
    ]
    found = ledgered(put(tmp_path, "x.json", json.dumps({"apiVersion": "v1", "items": [*pods, own, shared]})))
    assert sorted(found.jobs.gpus.tolist()) == [0.5, 0.5, 2.0]


@pytest.mark.parametrize(
    ("requests", "got", "gpus"),
    [
        ([{"exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}}], ["g"] * 4, 4.0),
        ([{"exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}, {"name": "nic", "deviceClassName": "sriov"}],
         [], 2.0),
        ([{"firstAvailable": [{"name": "one", "deviceClassName": "gpu.nvidia.com"},
                              {"name": "two", "deviceClassName": "gpu.nvidia.com", "count": 2}]}], ["g/two"] * 2, 2.0),
        ([{"exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All", "adminAccess": True}}],
         ["g"] * 8, 0.0),
        ([{"exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": True}}], [], 0.0),
    ],
)  # fmt: skip
def test_a_claim_counts_what_it_got_and_an_administrator_takes_nothing(tmp_path, requests, got, gpus):
    results = [{"request": name, "device": f"gpu-{i}"} for i, name in enumerate(got)]
    claim = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "lab"},
        "spec": {"devices": {"requests": [{"name": "g", **request} for request in requests]}},
        "status": {"allocation": {"devices": {"results": results}}},
    }  # fmt: skip
    user, other = pod("a", ran=("08:00:00", "09:00:00")), pod("b", gpus=1, ran=("08:00:00", "09:00:00"))
    user["metadata"]["namespace"] = "lab"
    user["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    found = ledgered(put(tmp_path, "x.json", json.dumps({"apiVersion": "v1", "items": [user, other, claim]})))
    assert hours(found) == gpus + 1
    assert not any("a resource claim" in note for note in found.jobs.notes)


def test_a_claim_for_a_share_of_a_device_is_told_and_not_counted(tmp_path):
    exactly = {"deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"memory": "16Gi"}}}
    claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
             "spec": {"devices": {"requests": [{"name": "g", "exactly": exactly}]}}}  # fmt: skip
    user, other = pod("a", ran=("08:00:00", "09:00:00")), pod("b", gpus=1, ran=("08:00:00", "09:00:00"))
    claim["metadata"]["namespace"] = user["metadata"]["namespace"]
    user["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimName": "c"}]
    found = ledgered(put(tmp_path, "x.json", json.dumps({"apiVersion": "v1", "items": [user, other, claim]})))
    assert hours(found) == 1.0
    assert any("not counted as GPUs: a resource claim of 1 pods" in note for note in found.jobs.notes)


@pytest.mark.parametrize(
    ("amounts", "gpus"),
    [
        ({"nvidia.com/mig-1g.5gb": 7}, 1.0),
        ({"nvidia.com/mig-1g.6gb": 4}, 1.0),
        ({"nvidia.com/mig-1c.2g.10gb": 7}, 1.0),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpucores": 50}, 1.0),
        ({"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu": 50}, 0.5),
        ({"nvidia.com/GRID_A100-10C": 4}, 1.0),
        ({"nvidia.com/a100": 2}, 2.0),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-cores": 30}, 0.3),
        ({"nvidia.com/hca1": 1, "nvidia.com/cx5_bond": 1}, 0.0),
        ({"koordinator.sh/gpu.shared": 4, "koordinator.sh/gpu-memory-ratio": 200}, 2.0),
        ({"koordinator.sh/gpu.shared": 1, "koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}, 0.5),
        ({"volcano.sh/gpu-number": 2}, 2.0),
        ({"alpha.kubernetes.io/nvidia-gpu": 2}, 2.0),
        ({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 2}, 2.0),
    ],
)
def test_resources_that_are_parts_of_gpus_count_as_parts(amounts, gpus):
    assert requested_gpus(amounts) == pytest.approx(gpus)


def test_slices_have_sevenths_or_fourths_and_other_devices_are_no_gpus():
    assert slice_of("a30_2g.12gb") == 0.5
    assert slice_of("h100_1g.10gb+me") == pytest.approx(1 / 7)
    assert part_of("huawei.com/Ascend910") is None
    assert not is_known("huawei.com/Ascend910")


# Text as people have it


def test_a_second_header_holds_for_the_rows_below_it(tmp_path):
    swapped = HEADER.replace("Start|End", "End|Start")
    cells = row(2).split("|")
    cells[4], cells[5] = cells[5], cells[4]
    more = f"{HEADER}|NNodes"
    found = slurm(tmp_path, row(1), swapped, "|".join(cells), more, f"{row(3)}|1")
    assert found.jobs.id.tolist() == ["1", "2", "3"]
    assert hours(found) == 3.0
    assert found.ledger.left_out == {"headers once more": 2}


def test_a_line_of_complaint_among_the_rows_is_lost_alone(tmp_path):
    found = slurm(tmp_path, row(1), "sacct: error: the connection is gone", HEADER, row(2), row(3))
    assert (found.jobs.id.tolist(), hours(found)) == (["1", "2", "3"], 3.0)


def test_a_requeue_in_the_hour_that_the_clocks_are_set_back_is_the_same_job(tmp_path):
    at = "2024-11-03T{}:00".format
    tries = [("00:30", "01:55", "01:25:00", "PREEMPTED", "00:00"), ("01:10", "02:10", "01:00:00", "COMPLETED", "01:02")]
    rows = [f"5|t|u|{at(sub)}|{at(a)}|{at(b)}|{took}|{state}|gres/gpu=1" for a, b, took, state, sub in tries]
    found = slurm(tmp_path, *rows)
    assert (len(found.jobs), hours(found)) == (1, pytest.approx(2 + 25 / 60))


@pytest.mark.parametrize(
    ("text", "gpu_hours"),
    [
        ("id;submit;duration_h;gpus\n1;0;1,5;2\n2;0;2,25;2\n", 7.5),
        ('id,submit,duration,gpus\n1,0,"3,600",4\n2,0,900,4\n', 5.0),
        ("id,submit,duration,gpu_milli,num_gpu\n1,0,3600,500,1\n2,0,3600,1000,2\n", 2.5),
        ("id,submit_time,duration,plan_gpu\n1,0,3600,50\n2,0,3600,800\n", 8.5),
        ("id,submit,start,end,gpus\n1,03/31/2024 10:00 AM,03/31/2024 11:00 AM,03/31/2024 1:00 PM,2\n", 4.0),
        ("id,submit,start,end,gpus\n1,31.03.24 10:00,31.03.24 10:00,31.03.24 11:00,2\n", 2.0),
        ("id,submit,start,end,gpus\n1,Mar 31 2024 10:00,Mar 31 2024 10:00,Mar 31 2024 11:00,2\n", 2.0),
        (f"id,submit,start,end,gpus\n1,{T}000000000,{T}000000000,{HOUR}000000000,2\n", 2.0),
        ("# from the dashboard\nid,submit,duration,gpus\n1,0,3600,2\n", 2.0),
        ("sep=;\nid;submit;duration;gpus\n1;0;3600;2\n", 2.0),
        ('{"id": 1, "submit": 0, "took": "1h", "gpus": 2}\n{"id": 2, "submit": 5, "took": "1h", "gpus": 1}\n', 3.0),
        ('[{"id": 1, "times": {"submit": 0, "start": 0, "end": 3600}, "resources": {"gpus": 2}}]', 2.0),
        ('{"jobs": [{"id": 1, "submit": 0, "duration": 3600, "gpus": 2}]}', 2.0),
        ('{"02": {"start_time": 0, "end_time": 3600, "gpus": 2}, "03": {"start_time": 0, "end_time": 3600}}', 2.0),
        ('{"jobs": {"02": {"submit": 0, "took": "1h", "gpus": 2}, "03": {"submit": 0, "took": "1h", "gpus": 1}}}', 3.0),
        ("id,submit,duration,gpus\n1,0,PT1H30M,2\n2,0,P1DT1H,1\n3,0,1.5h,2\n4,0,1 hour and 30 minutes,2\n", 34.0),
        ("id,submit,duration,gpus\n1,0,1h,4x A100\n2,0,1h,2 x V100\n3,0,1h,H100 x 8\n4,0,1h,2 GPUs\n", 16.0),
        ('id,submit,duration,gpu_ids\n1,0,1h,"0,1"\n2,0,1h,"[4, 5]"\n3,0,1h,7\n4,0,1h,0-3\n', 9.0),
        ("id,submit,duration,gpu_uuids\n1,0,1h,GPU-1f-2a;GPU-2e-3b\n", 2.0),
        ("id,submit,duration,nodes_req,gpus_per_node_req\n1,0,1h,4,4\n", 16.0),
        ("id,submit,duration,instance_count,gpus_per_instance\n1,0,1h,2,8\n", 16.0),
        ("id,submit,duration,world_size\n1,0,1h,16\n", 16.0),
        ("id,submit,duration,nodes,GPUs/node\n1,0,1h,4,8\n", 32.0),
        ('{"id": 1, "submit": 0, "duration": 3600, "gpus": 2, "hosts": [{"name": "a"}, {"name": "b"}]}\n'
         '{"id": 2, "submit": 0, "duration": 3600, "gpus": 1, "hosts": [{"name": "a"}]}\n', 3.0),
        ("id,submit,start,end,gpus\n1,Mar  1 10:00:00 2024,Mar  1 10:00:00 2024,Mar  1 11:00:00 2024 L,2\n"
         "2,Mar  1 10:00:00 2024,Mar  1 10:00:00 2024,-,2\n", 2.0),
    ],
)  # fmt: skip
def test_numbers_dates_and_records_as_people_write_them(tmp_path, text, gpu_hours):
    found = imported(tmp_path, text)
    assert hours(found) == pytest.approx(gpu_hours)
    assert found.ledger.unexplained_hours == 0


def test_the_key_of_a_record_in_json_is_its_id(tmp_path):
    found = imported(tmp_path, '{"02": {"submit": 0, "took": "1h"}, "03": {"submit": 0, "took": "1h"}}')
    assert found.jobs.id.tolist() == ["02", "03"]


def test_how_busy_gpus_were_is_no_number_of_gpus(tmp_path):
    found = imported(tmp_path, "id,submit,duration,gpu_util,gpu_time,cards\n1,0,3600,55.0,7200,2\n")
    assert hours(found) == 2.0


@pytest.mark.parametrize(
    ("columns", "cells", "gpus"),
    [
        ("Request GPU,GPU Memory,GPU Utilization", "4,1000,55", 4.0),
        ("gpu_mem_avg,num_gpus", "16,2", 2.0),
        ("numNodes,numAcc", "2,16", 16.0),
    ],
)
def test_memory_of_gpus_is_no_number_of_gpus_and_accelerators_are_some(tmp_path, columns, cells, gpus):
    assert hours(imported(tmp_path, f"id,submit,duration,{columns}\n1,0,3600,{cells}\n")) == gpus


def test_steps_in_a_table_are_no_jobs_where_their_job_has_a_row(tmp_path):
    lines = ("id,submit,duration,gpus", "12,0,3600,2", "12.batch,0,3600,2", "12.0,0,3600,2", "13.5,0,3600,1", "")
    found = imported(tmp_path, "\n".join(lines))
    assert (hours(found), found.ledger.unexplained_hours) == (3.0, 0)
    assert found.ledger.left_out == {"of steps (.batch, .extern, srun) of jobs that have rows of their own": 2}


def test_days_of_a_spreadsheet_are_moments(tmp_path):
    """Excel's 45231.5 is noon of 1 November 2023: (45231.5 - 25569) x 86,400 s after 1970."""
    lines = ("id,submit,start,end,gpus", "1,45231.5,45231.5104167,45231.59375,2", "2,45231.75,45231.75,45232.25,1", "")
    found = imported(tmp_path, "\n".join(lines))
    assert hours(found) == pytest.approx(2 * 2.0 + 12.0)
    assert list(found.jobs.arrival_s) == [0.0, 6 * 3600.0]
    assert any("submit counts days from 1899-12-30" in note for note in found.jobs.notes)
    plain = imported(tmp_path, "id,submit,duration,gpus\n1,40000,3600,1\n2,40000.3,3600,1\n")
    assert plain.jobs.arrival_s[1] == pytest.approx(0.3)


def test_commas_in_numbers_are_told(tmp_path):
    notes = imported(tmp_path, "id;submit;duration;gpus\n1;0;1800,5;2\n").jobs.notes
    assert any("duration has commas of decimals: '1800,5' is 1800.5" in note for note in notes)


@pytest.mark.parametrize(
    ("text", "gpus", "told"),
    [
        ("id,submit,gpus,gpu_hours\n1,0,4,8\n", 4, "no duration, which is gpu_hours / GPUs"),
        ("id,submit,start,end,gpu_hours\n1,0,0,7200,8\n", 4, "GPUs are gpu_hours / the time that jobs ran"),
        (
            "id,submit,duration_h,gpus,gpu_hours\n1,0,2,4,16\n",
            4,
            "gpu_hours differs from GPUs x duration in 1 of 1 rows",
        ),
        ("id,submit,duration_h,gpus_per_node\n1,0,2,4\n", 4, "no column shows how many each job has"),
    ],
)
def test_hours_and_gpus_of_each_node_are_used_or_compared_and_told(tmp_path, text, gpus, told):
    jobs = imported(tmp_path, text).jobs
    assert (jobs.gpus.tolist(), jobs.duration_s.tolist()) == ([gpus], [7200])
    assert any(told in note for note in jobs.notes), jobs.notes


def test_what_sacct_prints_without_p_is_cut_at_its_lines_of_dashes(tmp_path):
    rows = [row(n).replace("gres/gpu=1", f"cpu=8,gres/gpu={n}").split("|") for n in (1, 2)]
    rows[0][1:3], rows[1][1] = ["größe", "mü+"], "a b"
    header = HEADER.split("|")
    widths = [max(len(cells[i].encode()) for cells in (header, *rows)) for i in range(len(header))]

    def line(cells):
        return " ".join(" " * (n - len(cell.encode())) + cell for cell, n in zip(cells, widths, strict=True))

    lines = [line(header), " ".join("-" * n for n in widths), *map(line, rows)]
    path = put(tmp_path, "x.txt", "\n".join([*lines, *lines[:3], ""]))
    found = assert_read(path, "sacct", jobs=2, gpu_hours=3)
    assert [found.jobs.models[i] for i in found.jobs.model] == ["größe", "a b"]
    cut = put(tmp_path, "cut.txt", "\n".join([*lines, lines[2].replace("gres/gpu=1", "gres/gpu+ "), ""]))
    assert any("1 " in note and "gres/gpu+" in note for note in ledgered(cut).jobs.notes)


@pytest.mark.parametrize(
    ("comment", "jobs", "gpu_hours"), [("; Fields: 19 GPUs", 1, 2.0), ("; 19: GPUs asked for", 1, 2.0), ("", 2, 8.0)]
)
def test_a_comment_says_which_field_beyond_the_standard_ones_counts_gpus(tmp_path, comment, jobs, gpu_hours):
    line = "{} 0 10 3600 4 -1 -1 4 7200 -1 1 1 1 -1 1 1 -1 -1 {}\n"
    path = put(tmp_path, "x.swf", f"; Version: 2.2\n; Fields: 19\n{comment}\n{line.format(1, 2)}{line.format(2, 0)}")
    found = assert_read(path, "swf", jobs=jobs, gpu_hours=gpu_hours)
    assert any("fields 19 to 19 are not read" in note for note in found.jobs.notes) == (not comment)


@pytest.mark.parametrize(
    ("comments", "gpu_hours"),
    [
        ("; Field 19: requested GPUs\n; Field 20: allocated GPUs", 4 + 8),
        ("; Field 20: allocated GPUs\n; Field 19: requested GPUs", 4 + 8),
        ("; Field 19: requested GPUs", 8 + 8),
    ],
)
def test_of_fields_of_gpus_those_that_a_job_got_count(tmp_path, comments, gpu_hours):
    line = "{} 0 10 3600 4 -1 -1 4 7200 -1 1 1 1 -1 1 1 -1 -1 8 {}\n"
    path = put(tmp_path, "x.swf", f"; Version: 2.2\n{comments}\n{line.format(1, 4)}{line.format(2, -1)}")
    assert_read(path, "swf", jobs=2, gpu_hours=gpu_hours)


def test_a_job_that_squeue_saw_completing_ran_to_its_end(tmp_path):
    job = {"job_id": 5, "job_state": ["COMPLETING"], "submit_time": T, "start_time": T, "end_time": T + 1800,
           "tres_alloc_str": "gres/gpu=2"}  # fmt: skip
    found = ledgered(put(tmp_path, "x.json", json.dumps({"jobs": [job], "last_update": HOUR})))
    assert hours(found) == 1.0


@pytest.mark.parametrize(
    ("asked", "gpus", "kind"),
    [
        ({"tres_per_node": "gres:gpu:a100:2"}, 4, "a100"),  # printed by Slurm 22.05
        ({"tres_per_node": "gres/gpu:a100:2,gres/shard:1"}, 4, "a100"),
        ({"tres_per_node": "gres:gpu"}, 2, ""),
        ({"tres_per_task": "gres:gpu:2"}, 6, ""),
        ({"tres_per_job": "gres:gpu:v100:8"}, 8, "v100"),
        ({"tres_per_node": "gres:gpu:4", "gres_detail": ["gpu:a100:4(IDX:0-3)", "gpu:a100:1(IDX:0,2)"]}, 5, "a100"),
    ],
)
def test_squeue_tells_gpus_where_accounting_tracks_none(tmp_path, asked, gpus, kind):
    job = {"job_id": 5, "job_state": "COMPLETED", "submit_time": T, "start_time": T, "end_time": T + 3600, "tasks": 3,
           "node_count": 2, "nodes": "n[0-1]", "time_limit": 90, "partition": "p", "features": "big",
           "tres_alloc_str": "cpu=4,mem=4G,node=2,billing=4", **asked}  # fmt: skip
    jobs = ledgered(put(tmp_path, "x.json", json.dumps({"jobs": [job]}))).jobs
    assert (jobs.gpus[0], jobs.device_type[0]) == (gpus, kind)
    assert (jobs.limit_s[0], jobs.partition_names()[0], jobs.constraint[0]) == (5400, "p", "big")
    assert jobs.zero_s == T


def test_squeue_tells_how_long_a_suspended_job_ran(tmp_path):
    def number(value):
        return {"set": True, "infinite": False, "number": value}

    job = {"job_id": 5, "job_state": ["SUSPENDED"], "submit_time": number(T), "start_time": number(T),
           "suspend_time": number(T + 1800), "pre_sus_time": number(1800), "tres_alloc_str": "gres/gpu=2"}  # fmt: skip
    found = ledgered(put(tmp_path, "x.json", json.dumps({"jobs": [job], "last_update": number(HOUR)})))
    assert hours(found) == 1.0


def test_formats_are_listed_with_what_they_are(capsys):
    traces_list(formats=True)
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown] == list(FORMATS)
    assert all(len(line.split()) > 3 for line in shown)
    assert np.all([len(line) < 130 for line in shown])
