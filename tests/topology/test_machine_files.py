"""Machines are read as Slurm, Kubernetes and public traces print them, and what is left out is told."""

import json
import tomllib
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.topology import build
from labkit.topology.machine_files import inventory, machines, ranges, state

NODES = """NodeName=gpu01 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=96 CPUEfctv=126 CPUTot=128 CPULoad=95.50
   AvailableFeatures=a100,nvlink
   ActiveFeatures=a100,nvlink
   Gres=gpu:a100:4(S:0-1),shard:16
   NodeAddr=10.0.0.1 NodeHostName=gpu01 Version=23.02.7
   OS=Linux 5.15 #1 SMP x=y
   RealMemory=1031000 AllocMem=900000 Sockets=2 Boards=1
   State=MIXED ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A
   Partitions=gpu,short
   CfgTRES=cpu=126,mem=1031000M,billing=126,gres/gpu=4,gres/gpu:a100=4

NodeName=gpu02 Arch=x86_64 CoresPerSocket=32
   CPUTot=128 Gres=gpu:a100:4(S:0-1)
   RealMemory=1031000
   State=DOWN*+DRAIN
   Partitions=gpu
   Reason=State=IDLE was wrong [root@2024-03-01T10:00:00]

NodeName=cpu01 CPUTot=64 Gres=(null) RealMemory=257000 State=IDLE Partitions=cpu
NodeName=mig01 CPUTot=64 Gres=gpu:a100_1g.5gb:7(S:0),gpu:a100_3g.20gb:2(S:1) RealMemory=512000
   State=IDLE+CLOUD+POWERED_DOWN
NodeName=mix01 CPUTot=60 Gres=gpu:v100:2,gpu:rtx:4,fpga:1 RealMemory=61440 State=IDLE
"""


def read(folder: Path, **files: str) -> tuple[dict, list[str]]:
    """Return the inventory of some files as read again, and the notes."""
    paths = []
    for name, text in files.items():
        paths.append(folder / name.replace("_", "."))
        paths[-1].write_text(text, encoding="utf-8")
    text, notes = inventory(machines(paths), source="files")
    (folder / "hosts.toml").write_text(text, encoding="utf-8")
    build(str(folder / "hosts.toml"))
    return {row["name"]: row for row in tomllib.loads(text)["hosts"]}, notes


def partitions(folder: Path) -> dict[str, list[str]]:
    """Return the partitions of the inventory that was written."""
    return tomllib.loads((folder / "hosts.toml").read_text(encoding="utf-8"))["partitions"]


def test_what_scontrol_prints_becomes_hosts_with_what_is_left_out_in_words(tmp_path: Path) -> None:
    hosts, notes = read(tmp_path, nodes_txt=NODES)
    assert list(hosts) == ["gpu01", "mig01", "mix01-v100", "mix01-rtx"]
    first = hosts["gpu01"]
    assert (first["gpus"], first["cpus"], first["memory_gb"], first["device_type"]) == (4, 126, 1006.836, "a100")
    assert partitions(tmp_path) == {"gpu": ["gpu01"], "short": ["gpu01"]}
    assert first["features"] == ["a100", "nvlink"]
    assert hosts["mig01"]["gpus"] == 2  # 7/7 + 6/7
    assert (hosts["mix01-v100"]["cpus"], hosts["mix01-rtx"]["cpus"]) == (20, 40)
    assert notes[0] == "left out 1 of 5 hosts that are down or drained (1 DOWN*+DRAIN): gpu02"
    assert notes[1] == "left out 1 hosts without GPUs: cpu01"
    assert notes[2] == "devices that are not counted as GPUs: fpga of 1 hosts; --devices fpga counts them as GPUs"
    assert build(str(tmp_path / "hosts.toml")).n_gpus == 12


def test_partitions_come_from_their_own_file_and_a_lone_list_of_them_is_refused(tmp_path: Path) -> None:
    nodes = "NodeName=n[0-3] CPUs=16 RealMemory=64000 Gres=gpu:a100:4 Feature=big\n"
    told = (
        "PartitionName=all\n   AllowGroups=ALL Default=YES State=UP\n   Nodes=n[0-3]\n\n"
        "PartitionName=half State=UP Nodes=n[2-3]\nPartitionName=old State=DOWN Nodes=n0\n"
    )
    hosts, _ = read(tmp_path, nodes_txt=nodes, partitions_txt=told)
    assert list(hosts) == ["n[0-3]"]
    assert partitions(tmp_path) == {"all": ["n[0-3]"], "half": ["n[2-3]"]}
    with pytest.raises(
        InputError, match="does not show what n0 and 3 other hosts have; give what `scontrol show node`"
    ):
        read(tmp_path, partitions_txt=told)


@pytest.mark.parametrize(
    "text",
    [
        "NODELIST|PARTITION|STATE|CPUS|MEMORY|GRES|AVAIL_FEATURES\n"
        "n1|gpu*|mix|64+|256000|gpu:v100:4(S:0-1)|(null)\nn1|short|mix|64|256000|gpu:v100:4|(null)\n"
        "n2|gpu*|down*|64|256000|gpu:v100:4|(null)\n",
        "PARTITION NODES STATE  NODELIST CPUS MEMORY GRES\ngpu*      1     idle~  n1  64 256000 gpu:v100:4\n"
        "short 1 idle~ n1 64 256000 gpu:v100:4\n gpu* 1 drng n2 64 256000 gpu:v100:4\n",
    ],
)  # fmt: skip
def test_rows_of_sinfo_are_joined_by_host(tmp_path: Path, text: str) -> None:
    hosts, notes = read(tmp_path, sinfo_txt=text)
    assert list(hosts) == ["n1"]
    assert partitions(tmp_path) == {"gpu": ["n1"], "short": ["n1"]}
    assert (hosts["n1"]["gpus"], hosts["n1"]["cpus"], hosts["n1"]["memory_gb"]) == (4, 64, 250)
    assert "left out 1 of 2 hosts" in notes[0]


def test_what_sinfo_cut_is_refused_and_its_date_is_passed_over(tmp_path: Path) -> None:
    def columns(*cells: str) -> str:
        return "".join(cell.ljust(20)[:20] for cell in cells)

    head, date = columns("NODELIST", "GRES", "STATE"), "Mon Mar  4 10:00:00 2024"
    whole = columns("n1", "gpu:v100:4(S:0-1)", "mixed")
    hosts, _ = read(tmp_path, sinfo_txt="\n".join([date, head, whole, date, head, whole]))
    assert hosts["n1"]["gpus"] == 4
    for cut in ("gpu:nvidia_a100-sxm4-80gb:8", "gpu:nvidia_a100_80gb:8"):
        with pytest.raises(InputError, match=r"line 3 is 'n2 .* whose cells were cut; expected 3 whole ones: sinfo -N"):
            read(tmp_path, sinfo_txt="\n".join([head, whole, columns("n2", cut, "mixed")]))
    with pytest.raises(InputError, match=r"line 2 is .* whose cells were cut"):
        read(tmp_path, sinfo_txt="NODELIST|GRES\nn1|gpu:a100:4(S:0-1),gpu:v100\n")


def test_gpus_of_no_tracked_type_are_counted_beside_those_of_one(tmp_path: Path) -> None:
    node = "NodeName=n1 CPUTot=8 RealMemory=1024 State=IDLE\n   CfgTRES=cpu=8,gres/gpu=16,gres/gpu:b200=4\n"
    hosts, _ = read(tmp_path, nodes_txt=node)
    assert sum(row["gpus"] for row in hosts.values()) == 16


def test_custom_columns_of_kubectl_are_a_node_table(tmp_path: Path) -> None:
    hosts, notes = read(
        tmp_path, nodes_txt="NAME     GPU      MODEL\nn1       8        A100\nn2       <none>   <none>\n"
    )
    assert {name: row["gpus"] for name, row in hosts.items()} == {"n1": 8}
    assert notes[0] == "left out 1 hosts without GPUs: n2"


def test_json_of_old_and_new_versions_of_slurm(tmp_path: Path) -> None:
    nodes = [
        {"name": "a", "gres": "gpu:a100:8(S:0-1)", "cpus": 128, "real_memory": 1024, "state": "idle",
         "state_flags": ["DRAIN"], "features": "big"},
        {"name": "b", "gres": "gpu:a100:8", "cpus": 128, "real_memory": 1024, "state": ["MIXED"],
         "partitions": ["gpu", "all"], "active_features": ["big", "nvlink"]},
    ]  # fmt: skip
    hosts, notes = read(tmp_path, nodes_json=json.dumps({"nodes": nodes}))
    assert list(hosts) == ["b"]
    assert hosts["b"]["features"] == ["big", "nvlink"]
    assert partitions(tmp_path) == {"gpu": ["b"], "all": ["b"]}
    assert "1 idle+DRAIN" in notes[0]
    row = {
        "node": {"state": ["IDLE"]}, "nodes": {"nodes": ["c1", "c2"]}, "cpus": {"minimum": 32, "maximum": 32},
        "memory": {"minimum": 2048}, "gres": {"total": "gpu:h100:4"}, "features": {"total": ""},
        "partition": {"name": "p"},
    }  # fmt: skip
    hosts, _ = read(tmp_path, sinfo_json=json.dumps({"sinfo": [row]}))
    assert hosts["c[1-2]"] == {
        "name": "c[1-2]", "gpus": 4, "cpus": 32, "memory_gb": 2, "device_type": "h100"
    }  # fmt: skip


def node(name: str, resources: dict[str, str], **spec: object) -> dict[str, object]:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    has = {"cpu": "63500m", "memory": "1048576Ki", "hugepages-2Mi": "0", "rdma/hca": "1"} | resources
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec,
            "status": {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]}}  # fmt: skip


def test_devices_that_are_named_are_the_accelerators_of_their_hosts(tmp_path: Path) -> None:
    nodes = (
        "NodeName=n1 CPUTot=64 RealMemory=512000 Gres=npu:910b:8 State=IDLE\n\n"
        "NodeName=n2 CPUTot=64 RealMemory=512000 Gres=gpu:a100:4,shard:16 State=IDLE\n"
    )
    hosts, notes = read(tmp_path, nodes_txt=nodes)
    assert (list(hosts), notes) == (["n2"], ["left out 1 hosts without GPUs: n1; --devices npu counts them as GPUs"])
    listed_ = {one.name: one.gpus for one in machines([tmp_path / "nodes.txt"], devices="npu,shard=1/4")}
    assert listed_ == {"n1": {"npu-910b": 8}, "n2": {"a100": 4}}  # shards are parts of GPUs that are there
    (tmp_path / "nodes.json").write_text(json.dumps({"kind": "List", "items": [node("w", {"acme.io/npu": "4"})]}))
    assert machines([tmp_path / "nodes.json"], devices="acme.io/npu=1/2")[0].gpus == {"NVIDIA-A100-SXM4-80GB": 2}


def test_nodes_of_kubernetes_as_json_and_as_yaml(tmp_path: Path) -> None:
    items = [
        node("w1", {"nvidia.com/gpu": "8"}, taints=[{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]),
        node("w2", {"nvidia.com/gpu": "8"}, unschedulable=True),
        node("w3", {"nvidia.com/mig-1g.5gb": "14", "nvidia.com/gpu": "0"}),
        node("w4", {"nvidia.com/gpu": "2", "acme.io/npu": "4"}),
    ]
    late = node("w5", {"nvidia.com/gpu": "8"})
    late["status"]["conditions"][0]["status"] = "Unknown"  # type: ignore[index]
    hosts, notes = read(tmp_path, nodes_json=json.dumps({"apiVersion": "v1", "kind": "List", "items": [*items, late]}))
    assert {name: row["gpus"] for name, row in hosts.items()} == {"w1": 8, "w[3-4]": 2}
    assert hosts["w1"]["taints"] == ["gpu=yes:NoSchedule"]
    assert (hosts["w1"]["cpus"], hosts["w1"]["memory_gb"]) == (63.5, 1)
    assert "(1 cordoned, 1 NotReady)" in notes[0]
    assert notes[1] == (
        "devices that are not counted as GPUs: acme.io/npu of 1 hosts; --devices acme.io/npu counts them as GPUs"
    )
    yaml = pytest.importorskip("yaml", reason="kubectl's YAML needs PyYAML")
    again, _ = read(tmp_path, nodes_yaml=yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}))
    assert again == hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sn,cpu_milli,memory_mib,gpu,model\na,64000,262144,2,P100\n", (2, 64, 256, "P100")),  # openb
        ("a,V100,96,512,8\n", (8, 96, 512, "V100")),  # Alibaba 2020: pai_machine_spec.csv
        ("node_name,gpu_model,gpu_capacity_num,cpu_num\na,A10,1,128\n", (1, 128, 128, "A10")),  # Alibaba 2026
        ("Host;GPUs;Type;Cores;Memory_GB\na;4;t4;48;192\n", (4, 48, 192, "t4")),
    ],
)
def test_node_tables_of_public_traces(tmp_path: Path, text: str, expected: tuple[object, ...]) -> None:
    hosts, _ = read(tmp_path, nodes_csv=text)
    row = hosts["a"]
    assert (row["gpus"], row["cpus"], row["memory_gb"], row["device_type"]) == expected


def test_helios_tells_gpus_of_virtual_clusters_and_hosts_have_eight(tmp_path: Path) -> None:
    hosts, notes = read(tmp_path, gpus_csv="date,total,vcA,vcB\n2020-04-01,12,8,4\n2020-05-01,20,16,4\n")
    assert {name: row["gpus"] for name, row in hosts.items()} == {"vcA-[0-1]": 8, "vcB-0": 4}
    assert partitions(tmp_path) == {"vcA": ["vcA-[0-1]"], "vcB": ["vcB-0"]}
    assert notes[0] == "cpus of 3 hosts is unknown: 16 cores for each GPU is assumed"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hello\n", "its first line is 'hello'; expected what `scontrol show node`"),
        ("", "its first line is ''"),
        ('{"jobs": []}', "has no hosts"),
        ("{", "cannot be read"),
        ("NodeName=a CPUTot=2 Gres=(null) State=IDLE\n", "no host is left that has GPUs"),
        ("name,gpus\na,many\n", "row 2: gpus is 'many'; expected a number of GPUs"),
        ("name,gpus\na\n", "row 2 has 1 cells; expected 2"),
        ("kind: [\n", "is no YAML"),
    ],
)
def test_what_are_no_machines_is_refused_in_one_line(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, machines_txt=text)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_states_in_which_jobs_start_and_in_which_none_does() -> None:
    alive = ["IDLE", "ALLOCATED", "mix", "IDLE+PLANNED", "alloc#", "idle~", "IDLE+POWERING_DOWN", "MAINT", "RESERVED"]
    gone = ["DOWN", "idle*", "IDLE+DRAIN", "drng", "FAIL", "FUTURE", "IDLE+NOT_RESPONDING", "INVAL", "MIXED+DRAIN"]
    assert [state(text) for text in alive] == [""] * len(alive)
    assert [state(text) for text in gone] == gone


def test_slurm_conf_tells_cores_by_sockets_and_its_unknown_state_says_nothing(tmp_path: Path) -> None:
    text = """ClusterName=x
NodeName=DEFAULT Sockets=2 CoresPerSocket=32 RealMemory=512000
NodeName=DEFAULT ThreadsPerCore=2
NodeName=g[01-02] Gres=gpu:a100:8 State=UNKNOWN
NodeName=g03 Gres=gpu:a100:4 CPUs=48 State=UNKNOWN
#NodeName=g04 Gres=gpu:a100:4
NodeName=c01 State=UNKNOWN
# Gres=gpu:a100:4
PartitionName=gpu Nodes=g[01-03]
"""
    hosts, notes = read(tmp_path, slurm_conf=text)
    assert {name: (one["gpus"], one["cpus"]) for name, one in hosts.items()} == {"g[01-02]": (8, 128), "g03": (4, 48)}
    assert notes == ["left out 1 hosts without GPUs: c01"]
    _, notes = read(tmp_path, nodes_txt=NODES.replace("State=MIXED", "State=UNKNOWN"))  # scontrol has seen none of it
    assert any("1 UNKNOWN" in note for note in notes)


def test_memory_of_a_node_table_may_have_units(tmp_path: Path) -> None:
    text = 'name,gpus,cpus,memory_mb\na,4,64,300G\nb,4,64,"1,024 GB"\nc,4,1.5k,512GiB\nd,4,64,2048\ne,4,64,much\n'
    hosts, notes = read(tmp_path, nodes_csv=text)
    assert [hosts[name]["memory_gb"] for name in "abcd"] == [300, 1024, 512, 2]
    assert (hosts["c"]["cpus"], notes) == (1500, ["memory_gb of 1 hosts is unknown: 128 GB for each GPU is assumed"])


def test_names_with_other_widths_stay_apart() -> None:
    assert ranges(["a9", "a10", "b09", "b10", "b011", "x"]) == ["a[9-10]", "b[09-10]", "b011", "x"]


@pytest.mark.parametrize(
    ("text", "n_hosts", "gpus"),
    [
        ("Node;CPU cores;RAM (GB);GPU count;GPU model\nn1;64;256;4;A100\n", 1, 4),
        ("node_name,num_gpus,gpu_model,num_cpus,mem_gb,count\nbig,4,A100,64,256,3\nold,2,V100,64,256,1\n", 4, 14),
        ("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\n", 1, 2),
    ],
)
def test_a_node_table_may_count_hosts_and_call_its_columns_as_people_do(tmp_path, text, n_hosts, gpus) -> None:
    found = machines_of(tmp_path, "nodes.csv", text)
    assert (len(found.machines), found.n_gpus) == (n_hosts, gpus)
    assert "count is 'two'" in refused(tmp_path, "name,gpus,count\nn,4,two\n")


def machines_of(folder: Path, name: str, text: str):
    """Return the cluster that an import of one file writes; no amount of it may be assumed."""
    (folder / name).write_text(text, encoding="utf-8")
    hosts, notes = inventory(machines([folder / name]), source="a file")
    assert not any("is assumed" in note for note in notes), notes
    (folder / "hosts.toml").write_text(hosts, encoding="utf-8")
    return build(str(folder / "hosts.toml"))


def refused(folder: Path, text: str) -> str:
    """Return why a node table is refused."""
    (folder / "bad.csv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as error:
        machines([folder / "bad.csv"])
    return str(error.value)


@pytest.mark.parametrize(
    ("labels", "gpus"),
    [
        ({"nvidia.com/gpu.replicas": "4"}, 4),
        ({"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}, 4),
        ({"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "none"}, 16),
        ({"nvidia.com/gpu.replicas": "0"}, 16),
        ({"nvidia.com/gpu.count": "2"}, 2),  # a plugin that divides GPUs
        ({"nvidia.com/gpu.count": "4", "nvidia.com/gpu.replicas": "4"}, 4),
    ],
)
def test_replicas_of_shared_gpus_are_no_gpus(tmp_path, labels, gpus) -> None:
    amounts = {"cpu": "64", "memory": "500Gi", "nvidia.com/gpu": "16"}
    labels = {**labels, "nvidia.com/gpu.product": "Tesla-T4-SHARED"}
    node = {"kind": "Node", "metadata": {"name": "a", "labels": labels}, "status": {"allocatable": amounts}}
    found = machines_of(
        tmp_path, "nodes.json", json.dumps({"apiVersion": "v1", "items": [{"apiVersion": "v1", **node}]})
    )
    assert (found.n_gpus, found.device_types) == (gpus, ("Tesla-T4",))


@pytest.mark.parametrize(
    ("text", "n_gpus"),
    [
        ("hostname,gpus,cores\ng01,8,128\ng02,8,128\ng03,4,64\nTotal,20,320\n", 20),
        ("name,gpus,count\na,8,2\nb,4,1\nGesamt,20,3\n", 20),
        ("name,gpus\na,8\nsum,4\n", 12),  # a host of that name
    ],
)
def test_a_row_that_sums_up_a_node_table_is_no_machine_and_is_told(tmp_path, text, n_gpus) -> None:
    (tmp_path / "nodes.csv").write_text(text)
    hosts = machines([tmp_path / "nodes.csv"])
    _, notes = inventory(hosts, source="nodes.csv", every=True)
    assert sum(sum(one.gpus.values()) for one in hosts if not one.total) == n_gpus
    assert any("left out 1 rows that sum up others" in note for note in notes) == ("sum,4" not in text)


def test_slurm_conf_is_read_line_by_line_in_any_case_without_comments_and_quotes(tmp_path: Path) -> None:
    """slurm.conf(5): keys in any case, text behind # is a comment, DownNodes names nodes that are down."""
    conf = (
        "NodeName=a[1-2] CPUs=32 Gres=gpu:a100:4 RealMemory=128000 State=UNKNOWN\n"
        'DownNodes=a2 State=DOWN Reason="fan, State=IDLE soon"\n'
        "nodename=b1 cpus=16 gres=gpu:t4:2 \\\n  realmemory=64000\n"
        "NodeName=c1 CPUs=8 RealMemory=64000 # Gres=gpu:a100:8 sold 2023\n"
        "NodeName=d1 CPUs=8 RealMemory=64000 Gres=gpu:t4:1 # State=DOWN in May\n"
        "SlurmctldParameters=x State=DOWN Gres=gpu:v100:9\n"
        "# NodeName=e1 Gres=gpu:t4:1\n"
        "partitionname=all nodes=ALL default=YES\n"
    )
    hosts, notes = read(tmp_path, slurm_conf=conf)
    assert {name: (row["gpus"], row["cpus"], row["memory_gb"]) for name, row in hosts.items()} == {
        "a1": (4, 32, 125), "b1": (2, 16, 62.5), "d1": (1, 8, 62.5),
    }  # fmt: skip
    assert any("down or drained (1 DOWN): a2" in note for note in notes)
    assert partitions(tmp_path)["all"] == ["a1", "b1", "d1"]
