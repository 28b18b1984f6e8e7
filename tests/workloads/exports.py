"""Exports of made-up clusters: Slurm's accounting, Kubernetes' pods, a user's own table."""

from __future__ import annotations

SACCT_HEADER = "JobID|JobName|User|Submit|Start|End|Elapsed|State|AllocTRES|ReqTRES|Priority|Restarts"
SACCT_ROWS = (
    "100|bert|ann|2024-03-01T08:00:00|2024-03-01T08:00:10|2024-03-01T09:00:10|01:00:00|COMPLETED|"
    "billing=32,cpu=32,gres/gpu:a100=4,gres/gpu=4,mem=256G,node=1|billing=32,cpu=32,gres/gpu=4,mem=256G,node=1|100|0",
    "100.batch|batch||2024-03-01T08:00:10|2024-03-01T08:00:10|2024-03-01T09:00:10|01:00:00|COMPLETED|"
    "cpu=32,gres/gpu:a100=4,mem=256G,node=1|||0",
    "100.extern|extern||2024-03-01T08:00:10|2024-03-01T08:00:10|2024-03-01T09:00:10|01:00:00|COMPLETED|cpu=32|||0",
    "101_1|sweep|bob|2024-03-01T08:05:00|2024-03-01T08:06:00|2024-03-01T10:06:00|02:00:00|FAILED|"
    "cpu=8,gres/gpu:v100=1,gres/gpu=1,mem=64000M|cpu=8,gres/gpu:v100=1,gres/gpu=1|50|0",
    "101_2|sweep|bob|2024-03-01T08:05:00|2024-03-01T08:06:00|Unknown|1-02:00:00|RUNNING|"
    "cpu=8,gres/gpu:v100=1,gres/gpu=1,mem=64G|cpu=8,gres/gpu=1|50|0",
    "101_[3-9%2]|sweep|bob|2024-03-01T08:05:00|Unknown|Unknown|00:00:00|PENDING||cpu=8,gres/gpu=1|50|0",
    "102|cpu|cy|2024-03-01T08:05:00|2024-03-01T08:06:00|2024-03-01T09:06:00|01:00:00|COMPLETED|cpu=8|cpu=8|50|0",
    "103|x|cy|2024-03-01T08:05:00|None|2024-03-01T08:06:00|00:00:00|CANCELLED by 1000||cpu=8,gres/gpu=1|50|0",
    "104|re|dan|2024-03-01T08:10:00|2024-03-01T08:11:00|2024-03-01T08:41:00|00:30:00|REQUEUED|cpu=8,gres/gpu=2||50|0",
    "104|re|dan|2024-03-01T08:41:00|2024-03-01T08:45:00|2024-03-01T10:45:00|02:00:00|COMPLETED|cpu=8,gres/gpu=2||50|1",
    "105+0|het|eve|2024-03-01T08:41:00|2024-03-01T08:45:00|2024-03-01T09:45:00|01:00:00|COMPLETED|"
    "cpu=8,gres/gpu=2,mem=64G||50|0",
    "105+1|het|eve|2024-03-01T08:41:00|2024-03-01T08:45:00|2024-03-01T09:45:00|01:00:00|TIMEOUT|"
    "cpu=4,gres/gpu=1,mem=64G||50|0",
)
SACCT = "\n".join((SACCT_HEADER, *SACCT_ROWS)) + "\n"


def number(n):
    """Return a number as newer versions of Slurm write it."""
    return {"set": True, "infinite": False, "number": n}


SACCT_JSON = {
    "meta": {},
    "jobs": [
        {
            "job_id": 100, "name": "bert", "user": "ann", "account": "lab", "partition": "gpu", "priority": number(100),
            "array": {"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0}, "task": ""},
            "het": {"job_id": 0, "job_offset": {"set": False, "infinite": False, "number": 0}},
            "state": {"current": ["COMPLETED"], "reason": "None"},
            "time": {"submission": 1709280000, "start": 1709280010, "end": 1709283610, "elapsed": 3600},
            "tres": {
                "allocated": [
                    {"type": "cpu", "name": "", "id": 1, "count": 32},
                    {"type": "mem", "name": "", "id": 2, "count": 262144},
                    {"type": "gres", "name": "gpu", "id": 1001, "count": 4},
                    {"type": "gres", "name": "gpu:a100", "id": 1002, "count": 4},
                ],
                "requested": [{"type": "gres", "name": "gpu", "id": 1001, "count": 4}],
            },
            "steps": [{"step": {"id": "100.batch"}}],
        },
        {
            "job_id": 103, "name": "sweep", "user": "bob", "array": {"job_id": 101, "task_id": 7, "task": ""},
            "state": {"current": "RUNNING"},
            "time": {"submission": 1709280300, "start": 1709280360, "end": 0, "elapsed": 7200},
            "tres": {"allocated": [{"type": "gres", "name": "gpu", "id": 1001, "count": 1}], "requested": []},
        },
    ],
}  # fmt: skip


def pod(name, *, labels=None, owner=None, gpus=0, created="08:00:00", ran=None, phase="Succeeded", **spec):
    """Return a pod; `ran` are the times of start and end, either of which may be missing."""
    start, end = ran or (None, None)
    at = "2024-03-01T{}Z".format
    state = {}
    if end:
        state = {"terminated": {"startedAt": at(start), "finishedAt": at(end)}}
    elif start:
        state = {"running": {"startedAt": at(start)}}
    limits = {"cpu": "4", "memory": "16Gi"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "lab",
            "creationTimestamp": at(created),
            "labels": labels or {},
            "ownerReferences": [{"kind": owner[0], "name": owner[1], "controller": True}] if owner else [],
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}], **spec},
        "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": state}] if state else []},
    }


KUEUE = {"kueue.x-k8s.io/pod-group-name": "bert", "kueue.x-k8s.io/queue-name": "team-a"}
VOLCANO = {"volcano.sh/job-name": "tf", "volcano.sh/queue-name": "team-b"}
A100 = {"nvidia.com/gpu.product": "NVIDIA-A100"}
WORKER = {**VOLCANO, "volcano.sh/task-spec": "worker"}
PODS = [
    pod("bert-0", labels=KUEUE, gpus=8, ran=("08:10:00", "09:10:00"), nodeSelector=A100),
    pod("bert-1", labels=KUEUE, gpus=8, ran=("08:10:05", "09:10:00"), created="08:00:01"),
    pod("tf-w0", labels=WORKER, gpus=1, ran=("08:10:00", "08:40:00"), priority=7),
    pod("tf-ps0", labels={**VOLCANO, "volcano.sh/task-spec": "ps"}, ran=("08:09:00", "08:40:00")),
    pod("retry-a", owner=("Job", "retry"), gpus=1, ran=("08:10:00", "08:20:00"), phase="Failed"),
    pod("retry-b", owner=("Job", "retry"), gpus=1, ran=("08:21:00", "08:41:00"), created="08:20:30"),
    pod("mpi-launcher", labels={"training.kubeflow.org/job-name": "mpi"}, ran=("08:10:00", "08:50:00")),
    pod("mpi-worker-0", labels={"training.kubeflow.org/job-name": "mpi"}, gpus=2, ran=("08:10:00", "08:50:00")),
    pod("alone", gpus=1, ran=("08:30:00", None), phase="Running"),
    pod("waiting", gpus=1, phase="Pending"),
    pod("web-1", owner=("ReplicaSet", "web"), gpus=1, ran=("08:00:00", None), phase="Running"),
    pod("etl", owner=("Job", "etl"), ran=("08:00:00", "08:30:00")),
]  # fmt: skip

TABLE = """job_id;owner;submit_time;startTime;run_time_min;gpu_num;exit_code;gpu_type;mem_mb
a;ann;2024-03-01 08:00:00;2024-03-01 08:00:10;60;4;0;a100;16000
b;bob;2024-03-01 08:01:00;2024-03-01 08:03:10;30;1;0;v100;16000
c;bob;2024-03-01 08:01:00;;;1;0;v100;16000
d;bob;;2024-03-01 08:30:00;5;2;0;v100;16000
e;cy;2024-03-01 08:02:00;2024-03-01 08:30:00;5;0;0;;16000
"""
