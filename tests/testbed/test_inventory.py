"""Inventories: machines and how to log in to them, from TOML and an ssh configuration, every fault told at once."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.testbed.fab import chosen, names_of
from labkit.testbed.inventory import Inventory, Machine
from labkit.topology import from_inventory

EXAMPLE = Path(__file__).parents[2] / "testbed" / "hosts.example.toml"
HOST = "[[hosts]]\nname = {!r}\ngpus = 1\ncpus = 4\nmemory_gb = 8\n"
TWO = """
[ssh]
user = "lab"
key = "keys/lab"
known_hosts = "known"
config = "none"

[[hosts]]
name = "a"
gpus = 2
cpus = 8
memory_gb = 16
ssh = { address = "10.0.0.1", port = 2222, python = "/srv/py/bin/python", folder = "/scratch/lab" }

[[hosts]]
name = "b"
gpus = 0
cpus = 4
memory_gb = 8
ssh = { user = "guest", key = "/etc/guest" }
"""
CONFIG = """
Host a b
  User from-config
  IdentityFile /nowhere/id
  ProxyJump me@bastion:2200,inner

Host a
  HostName a.example.org
  Port 2022

Host inner
  HostName 10.9.9.9
  User inner-user

Host c
  ProxyCommand nc -X 5 %h %p
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="hosts.toml"):
        (tmp_path / name).write_text(text)
        return tmp_path / name

    return write


def test_a_host_has_what_its_table_says_and_then_what_the_table_of_all_says(write, tmp_path):
    inventory = Inventory.read(write(TWO))
    a, b = inventory
    assert (a.address, a.port, a.user, a.key, a.python, a.folder) == (
        "10.0.0.1", 2222, "lab", tmp_path / "keys/lab", "/srv/py/bin/python", "/scratch/lab",
    )  # fmt: skip
    assert (b.address, b.port, b.user, b.key, b.python, b.folder) == (
        "b", 22, "guest", Path("/etc/guest"), "python3", "~/.labkit",
    )  # fmt: skip
    assert inventory.known_hosts == tmp_path / "known"
    assert (a.key_name, b.key_name, a.host.gpus) == ("[10.0.0.1]:2222", "b", 2)


def test_what_the_ssh_configuration_says_of_a_name_comes_last(write, tmp_path):
    write(CONFIG, "config")
    text = "[ssh]\nconfig = 'config'\n" + HOST.format("a") + "ssh = { user = 'mine' }\n" + HOST.format("c")
    a, c = Inventory.read(write(text))
    assert (a.address, a.port, a.user, a.key) == ("a.example.org", 2022, "mine", Path("/nowhere/id"))
    assert (c.address, c.proxy_command, c.jump) == ("c", "nc -X 5 c 22", None)
    assert c.user == getpass.getuser()


def test_hops_are_reached_one_through_the_other(write):
    write(CONFIG, "config")
    text = "[ssh]\nconfig = 'config'\n" + HOST.format("a")
    (a,) = Inventory.read(write(text))
    assert isinstance(a.jump, Machine)
    assert (a.jump.address, a.jump.user) == ("10.9.9.9", "inner-user")
    assert (a.jump.jump.address, a.jump.jump.port, a.jump.jump.user) == ("bastion", 2200, "me")
    assert a.jump.jump.jump is None


def test_a_hop_may_be_a_host_of_the_inventory(write):
    text = TWO.replace('ssh = { user = "guest"', 'ssh = { proxy_jump = "a", user = "guest"')
    a, b = Inventory.read(write(text))
    assert b.jump == a


def test_a_way_in_the_inventory_replaces_the_one_in_the_ssh_configuration(write):
    write(CONFIG, "config")
    text = "[ssh]\nconfig = 'config'\n" + HOST.format("a") + "ssh = { proxy_command = 'nsenter -t 1 nc %h %p' }\n"
    (a,) = Inventory.read(write(text))
    assert (a.proxy_command, a.jump) == ("nsenter -t 1 nc %h %p", None)


def test_every_fault_of_a_file_is_told_at_once(write):
    text = """
colour = 1
[ssh]
usr = "lab"
address = "10.0.0.1"
[[hosts]]
name = "a; rm -rf ~"
gpus = 1
cpus = 4
memory_gb = 8
ssh = { port = 70000, adress = "x" }
[[hosts]]
name = "b"
gpus = 1
cpus = 4
memory_gb = 8
ssh = { address = "$(reboot)", user = "-oProxyCommand=x", folder = "labkit", config = "none" }
[[hosts]]
name = "c"
gpus = 1
cpus = 4
memory_gb = 8
ssh = { proxy_jump = "a b", python = "py\\nthon" }
"""
    with pytest.raises(InputError) as error:
        Inventory.read(write(text))
    for part in [
        "unknown table or key 'colour'",
        "[ssh]: unknown key 'usr'; did you mean 'user'?",
        "[ssh]: address cannot be the same for all hosts",
        "host 1 (a; rm -rf ~): ssh: port is 70000; expected less than or equal to 65535",
        "host 1 (a; rm -rf ~): ssh: unknown key 'adress'; did you mean 'address'?",
        "host 1 (a; rm -rf ~): name is 'a; rm -rf ~'; expected letters, digits",
        "host 2 (b): ssh: address is '$(reboot)'; expected no blanks, quotes or shell characters",
        "host 2 (b): ssh: user is '-oProxyCommand=x'",
        "host 2 (b): ssh: folder is 'labkit'; expected an absolute path, or one that begins with ~/",
        "host 2 (b): ssh: config is an option of all hosts",
        "host 3 (c): ssh: python is 'py\\nthon'; expected no control characters",
        "host c: proxy_jump is 'a b'; expected user@host:port",
    ]:
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["../x", "a b", "a\nb", "$(x)", "-v", "", "a/b", "x" * 64, "é"])
def test_names_that_could_mean_something_else_are_refused(write, name):
    text = HOST.replace("{!r}", '"""' + name.replace("\n", "\\n") + '"""')
    with pytest.raises(InputError, match=r"name"):
        Inventory.read(write(text))


def test_the_machines_of_the_example_are_the_cluster_that_topology_reads():
    inventory = Inventory.read(EXAMPLE)
    assert inventory.cluster().machines == from_inventory(EXAMPLE).machines == inventory.names
    assert inventory.cluster().name == from_inventory(EXAMPLE).name


def test_some_machines_are_an_inventory_too(write):
    inventory = Inventory.read(write(TWO))
    assert inventory.only("b").names == ("b",)
    assert inventory.only(["b", "a"]).names == ("a", "b")
    assert inventory.only("b").cluster().n_gpus == 0
    with pytest.raises(InputError, match=r"unknown host 'bb'. Did you mean 'b'\?"):
        inventory.only("a,bb")
    with pytest.raises(InputError, match="no hosts are named"):
        inventory.only([])


def test_without_a_file_the_named_one_counts_then_the_checkouts_then_the_bed(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("LABKIT_HOSTS", raising=False)
    with pytest.raises(InputError, match="labkit bed up"):
        Inventory.read()
    bed = tmp_path / "state" / "labkit" / "bed"
    bed.mkdir(parents=True)
    (bed / "hosts.toml").write_text(HOST.format("laptop"))
    assert Inventory.read().names == ("laptop",)
    (tmp_path / "testbed").mkdir()
    (tmp_path / "testbed" / "hosts.toml").write_text(HOST.format("real"))
    assert Inventory.read().names == ("real",)
    monkeypatch.setenv("LABKIT_HOSTS", str(write(HOST.format("named"), "x.toml")))
    assert Inventory.read().names == ("named",)


def test_a_bad_ssh_configuration_is_a_fault_of_the_inventory(write):
    write("Host a\n  Match\n  nonsense without end\n\x00", "config")
    with pytest.raises(InputError, match="config"):
        Inventory.read(write("[ssh]\nconfig = 'config'\n" + HOST.format("a")))


def test_what_the_ssh_configuration_includes_is_read_in_its_place(write, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh/conf.d").mkdir(parents=True)
    write("Host a\n HostName 10.1.1.1\n  Include plain\n User from-a\n", ".ssh/conf.d/10-a")
    write("Port 2201\n", ".ssh/plain")
    write("host=b\n User from-b\n", ".ssh/conf.d/20-b")
    write('# first\nInclude conf.d/* ~/none\nUser everybody\nInclude "conf.d/20-b"\nHost b\n Port 2202\n', "config")
    text = "[ssh]\nconfig = 'config'\n" + HOST.format("a") + HOST.format("b") + HOST.format("c")
    a, b, c = Inventory.read(write(text))
    assert (a.address, a.port, a.user) == ("10.1.1.1", 2201, "from-a")
    assert (b.port, b.user) == (2202, "from-b")
    assert (c.address, c.port, c.user) == ("c", 22, "everybody"), "what follows an Include is not of its last block"


def test_an_include_that_cannot_be_read_as_ssh_does_is_told(write, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    write("Host b\n User x\n", ".ssh/more")
    write("Host a*\n  Include more\n", "config")
    text = "[ssh]\nconfig = 'config'\n" + HOST.format("a")
    with pytest.raises(InputError, match=r"'Include more' stands below 'Host a\*' .*Move it there"):
        Inventory.read(write(text))
    write("Include config\n", ".ssh/config")
    with pytest.raises(InputError, match="16 files deep; does it include itself"):
        Inventory.read(write(text.replace("'config'", "'.ssh/config'")))


def test_hosts_of_a_range_have_addresses_of_their_own_and_are_picked_by_range_and_group(tmp_path):
    path = tmp_path / "hosts.toml"
    path.write_text(
        '[ssh]\nconfig = "none"\n'
        + HOST.format("gpu[01-04]").replace("'", '"')
        + 'ssh = { address = "10.0.0.[11-14]", port = 2222 }\n'
        + HOST.format("cpu").replace("'", '"')
        + '[groups]\nfast = "gpu[01-02]"\nrest = ["gpu[03-04]", "cpu"]\nall = ["rest", "fast"]\n'
    )
    hosts = Inventory.read(path)
    assert hosts.names == ("gpu01", "gpu02", "gpu03", "gpu04", "cpu")
    assert [hosts[name].address for name in ("gpu01", "gpu04", "cpu")] == ["10.0.0.11", "10.0.0.14", "cpu"]
    assert hosts["gpu03"].port == 2222
    assert hosts.only("rest,gpu[01-01]").names == ("gpu01", "gpu03", "gpu04", "cpu")
    assert hosts.only(["all"]).names == hosts.names
    assert chosen(hosts, ["fast", "10.0.0.14"]).names == ("gpu01", "gpu02", "gpu04")
    assert chosen(hosts, names_of("gpu[01,03],cpu")).names == ("gpu01", "gpu03", "cpu")
    with pytest.raises(InputError, match=r"unknown host or group 'gpu05'. Did you mean"):
        hosts.only("gpu[04-05]")
