"""Ranges and groups of hosts: one table for many, and every malformed one told with what was expected."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.core.host_names import expanded, listed
from labkit.topology import from_inventory

TABLE = '[[hosts]]\nname = "{name}"\ngpus = 2\ncpus = 8\nmemory_gb = 16\n{more}\n'


def inventory(tmp_path: Path, *tables: tuple[str, str], groups: str = "") -> Path:
    path = tmp_path / "hosts.toml"
    path.write_text("".join(TABLE.format(name=name, more=more) for name, more in tables) + groups)
    return path


@given(st.integers(0, 500), st.integers(0, 60), st.integers(1, 5))
def test_a_range_names_each_number_once_in_order_and_keeps_its_zeros(first, more, width):
    low, high = str(first).zfill(width), str(first + more).zfill(width)
    padded = any(number[0] == "0" and len(number) > 1 for number in (low, high))
    names = expanded(f"n[{low}-{high}]") if len(low) == len(high) or not padded else None
    if names is not None:
        assert [int(name[1:]) for name in names] == list(range(first, first + more + 1))
        assert {len(name) for name in names} <= set(range(1 + len(low), 2 + len(high)))
        assert listed(",".join(names)) == names == listed(f"n[{low}-{high}]")


def test_a_lone_zero_is_a_number_and_no_padding():
    assert expanded("node[0-10]") == [f"node{i}" for i in range(11)]
    assert len(listed("[0-127]")) == 128  # CPU_IDs of a whole node


def test_slurms_own_example_of_a_list_is_read_as_slurm_reads_it():
    assert listed("lx[15,18,32-33],rack[0-1]node[01-02],login") == [
        "lx15", "lx18", "lx32", "lx33", "rack0node01", "rack0node02", "rack1node01", "rack1node02", "login",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu[16-01]", "the smaller number first"),
        ("gpu[01-016]", "001-016, padded alike"),
        ("gpu[1-]", "numbers, as in gpu[01-16]"),
        ("gpu[-3]", "numbers, as in gpu[01-16]"),
        ("gpu[a-c]", "numbers, as in gpu[01-16]"),
        ("gpu[]", "numbers, as in gpu[01-16]"),
        ("gpu[1--3]", "numbers, as in gpu[01-16]"),
        ("gpu[٣]", "numbers, as in gpu[01-16]"),
        ("gpu[1-99999999]", "10,000 numbers at most"),
        ("gpu[1-3", "a range such as gpu[01-16]"),
        ("gpu1]", "a range such as gpu[01-16]"),
        ("gpu[[1-3]]", "a range such as gpu[01-16]"),
        ("a[1-999]b[1-999]", "10,000 at most"),
    ],
)
def test_a_malformed_range_is_refused_with_what_was_expected(text, expected):
    with pytest.raises(InputError) as error:
        expanded(text)
    assert text[:20] in str(error.value)
    assert f"expected {expected}" in str(error.value)


def test_a_table_with_a_range_stands_for_as_many_hosts(tmp_path):
    cluster = from_inventory(inventory(tmp_path, ("gpu[08-10]", 'device_type = "v100"'), ("cpu", "")))
    assert cluster.machines == ("gpu08", "gpu09", "gpu10", "cpu")


@pytest.mark.parametrize(
    ("name", "more", "told"),
    [
        ("gpu[3-1]", "", "host 1 (gpu[3-1]): 'gpu[3-1]' has the range '3-1'; expected the smaller number first"),
        ("gpu[1-2]", "count = 3", "count is 3, and its name is a range; leave one of them out"),
        ("gpu[1-3]", 'ssh = { address = "10.0.0.[11-12]" }', "3 hosts, and ssh.address '10.0.0.[11-12]' for 2"),
        ("gpu[1-3]", 'ssh = { address = "10.0.0.7" }', "3 hosts, and ssh.address '10.0.0.7' for 1"),
        ("gpu[1,1]", "", "host name 'gpu1' occurs 2 times"),
    ],
)
def test_a_faulty_range_is_a_fault_of_its_host(tmp_path, name, more, told):
    with pytest.raises(InputError) as error:
        from_inventory(inventory(tmp_path, (name, more)))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ('fast = "gpu[1-9]"', "group fast: unknown host 'gpu3'. Did you mean"),
        ("fast = 3", "group fast: it is 3; expected names of hosts"),
        ("fast = []", "group fast: it is []; expected names of hosts"),
        ('gpu1 = "gpu2"', "group gpu1: expected a name that no host has"),
        ('"a b" = "gpu2"', "group a b: expected a name that no host has"),
        ('fast = "all"\nall = "gpu1"', "group fast: unknown host 'all'"),
    ],
)
def test_a_faulty_group_is_told_with_the_rest(tmp_path, groups, told):
    path = inventory(tmp_path, ("gpu[1-2]", ""), groups=f"[groups]\n{groups}\n")
    with pytest.raises(InputError) as error:
        from_inventory(path)
    assert told in str(error.value)
