"""Keys of hosts: shown, added after consent, never replaced."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from labkit.testbed.errors import HostUnreachableError
from labkit.testbed.inventory import Inventory
from labkit.testbed.ssh.connect import KeyState, scan, trust
from labkit.testbed.ssh.fleet import Fleet


@pytest.fixture
def strange(bed, tmp_path) -> Inventory:
    """The laptop testbed as a user sees it who knows none of its keys."""
    return replace(bed, known_hosts=tmp_path / "ssh" / "known_hosts")


def states(table):
    return [row.state for row in table]


def test_new_keys_are_added_once_and_then_the_hosts_answer(strange):
    assert states(trust(strange)) == [KeyState.ADDED] * 4
    assert strange.known_hosts.stat().st_mode & 0o777 == 0o600
    before = strange.known_hosts.read_text()
    again = trust(strange)
    assert states(again) == [KeyState.KNOWN] * 4
    assert again.ok
    assert strange.known_hosts.read_text() == before
    with Fleet(strange) as fleet:
        assert fleet.run(["true"]).ok


def test_the_fingerprint_is_the_one_that_the_host_itself_tells(strange, up):
    for slot, row in zip(up.plan.slots, trust(strange), strict=True):
        told = subprocess.run(
            ["ssh-keygen", "-lf", up.plan.control(slot) / "key"], capture_output=True, text=True, check=True
        )
        assert row.fingerprint == told.stdout.split()[1]
        assert row.kind == "ssh-ed25519"


def test_nothing_is_added_without_consent(strange):
    shown = []
    assert states(trust(strange, agree=lambda table: shown.append(str(table)))) == [KeyState.NEW] * 4
    assert "SHA256:" in shown[0]
    assert not strange.known_hosts.exists()


def test_a_key_that_changed_is_not_replaced(strange, bed):
    strange.known_hosts.parent.mkdir()
    lines = bed.known_hosts.read_text().splitlines()
    lines[2] = f"{lines[2].split()[0]} {' '.join(lines[0].split()[1:])}"
    strange.known_hosts.write_text("# mine\n" + "\n".join(lines[1:]))  # without the first, and without a newline
    table = trust(strange)
    assert states(table) == [KeyState.ADDED, KeyState.KNOWN, KeyState.CHANGED, KeyState.KNOWN]
    assert not table.ok
    assert "ssh-keygen -R" in table.rows[2].error
    assert strange.known_hosts.read_text().splitlines() == ["# mine", *lines[1:], lines[0]]


def test_hosts_that_do_not_answer_are_rows(strange):
    machines = (replace(strange["h0"], address="nosuch.invalid"), *strange.machines[1:])
    table = trust(replace(strange, machines=machines))
    assert states(table) == [KeyState.FAILED, KeyState.ADDED, KeyState.ADDED, KeyState.ADDED]
    assert "cannot be reached" in table.rows[0].error
    with pytest.raises(HostUnreachableError):
        scan(machines[0], known_hosts=strange.known_hosts)
