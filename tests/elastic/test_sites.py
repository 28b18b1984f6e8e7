"""Jobs whose members sit on several hosts: launchers with folders of their own, on addresses of this machine."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from labkit.core.errors import InputError
from labkit.elastic import JobError, Result
from labkit.elastic.controller.controller_state import SavedController
from labkit.elastic.controller.job_files import STATE
from labkit.elastic.process.credentials import packed, unpack
from labkit.elastic.process.local_members import member_arguments, running
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.clients import StopJob
from labkit.elastic.protocol.messages.codec import FrameKind, encode, hello, load_struct
from labkit.elastic.protocol.sites import Site
from labkit.elastic.shards import prove
from labkit.elastic.transport import Access, Address, Authority, Certificates, TransportError, connect
from tests.elastic import two_hosts
from tests.elastic.transport.ends import Noting
from tests.elastic.two_hosts import HALF, SITES, STEPS, Bed, bed
from tests.hang import HANG_S


@pytest.fixture(scope="module", autouse=True)
def by_value() -> Iterator[None]:
    """Let processes get the dataset of the tests without the tests."""
    cloudpickle.register_pickle_by_value(two_hosts)
    yield
    cloudpickle.unregister_pickle_by_value(two_hosts)


@pytest.fixture(scope="module")
def control(by_value: None, tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run on one host, to which nothing happens."""
    with bed(tmp_path_factory.mktemp("control"), hosts="", sites=(), place=None, network="local") as alone:
        return alone.result()


def deaths(run: Bed) -> list[str]:
    return [e["name"] for e in run.events() if e["event"] == "left" and not e["expected"]]


@pytest.mark.parametrize("strategy", ["handover", "suspend", "checkpoint"])
def test_a_job_that_is_placed_anew_and_anew_gives_the_bits_of_an_undisturbed_run(
    control: Result, tmp_path: Path, strategy: str
) -> None:
    """It grows, moves to the other host as a whole, and shrinks."""
    with bed(tmp_path) as run:
        run.until("loss")
        assert run.sitting() == HALF
        for place in ({"a/0": (1, 1), "b/0": (2, 2)}, {"b/0": (2, 1)}, {"a/0": (1, 1)}):
            run.place(place, strategy=strategy)
            assert run.sitting() == place
        result = run.result()
        assert result.digest == control.digest
        assert not deaths(run)
        assert [e for e in result.events if e["event"] == "scaled"][-1]["strategy"] == strategy
        assert not run.left_behind()


def test_asynchronous_training_moves_to_another_host_and_each_sample_has_its_effect_once(tmp_path: Path) -> None:
    with bed(tmp_path, sync=False, steps=60, wait_s=2.0, save_every=0) as run:
        run.until("loss")
        run.place({"b/0": (2, 1)})
        run.place({"a/0": (1, 1)})
        result = run.result()
        assert result.version == 60
        prove(result.ledger, n_samples=128, epochs=15)
        assert not deaths(run)
        assert not run.left_behind()


def test_members_listen_at_their_sites_address_with_the_cores_and_devices_of_their_site(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    sites = [SITES[0], Site("b/0", "b", "127.0.0.2", cores=(core,)), Site("b/1", "b", "127.0.0.3")]
    with bed(tmp_path, sites=sites, place={"a/0": (0, 1), "b/0": (2, 1), "b/1": (0, 1)}) as run:
        run.until("loss")
        members = load_struct(run.job.folder / STATE, SavedController).machine.members
        hosts = {one.site: Address.parse(one.address).host for one in members if one.address}
        assert hosts == {"a/0": "127.0.0.1", "b/0": "127.0.0.2", "b/1": "127.0.0.3"}
        started = {e["name"]: e for e in run.events() if e["event"] == "started"}
        assert {name: (e["site"], e["host"]) for name, e in started.items()} == {
            "ps-0": ("a/0", "a"), "ps-1": ("b/0", "b"), "ps-2": ("b/1", "b"), "worker-0": ("b/0", "b"),
            "worker-1": ("b/0", "b"),
        }  # fmt: skip
        assert os.sched_getaffinity(started["worker-0"]["pid"]) == {core}
        words = member_arguments(started["worker-1"]["pid"])
        assert words is not None
        assert words[1:] == ("worker", "worker-1", "b/0", "cpu")
        assert Path(words.home).parent.parent == run.homes[0]
        run.result()


def test_what_members_on_other_hosts_use_is_told_by_their_launchers(tmp_path: Path) -> None:
    with bed(tmp_path, measure_every_s=0.5, steps=2 * STEPS) as run:
        told = run.until(lambda e: e["event"] == "used" and e["name"] == "ps-1" and bool(e["cores"]), n=6)
        assert 0.05 < told["memory_gb"] < 8
        seats = {seat.name: seat for seat in run.job.status().members}
        assert set(seats) == {"ps-0", "ps-1", "worker-0", "worker-1"}
        assert all(seat.memory_gb and seat.cores is not None and seat.cores < 8 for seat in seats.values())
        run.result()
        assert not run.left_behind()


def test_a_host_gets_keys_of_its_own_members_only_and_all_of_them_are_private(tmp_path: Path) -> None:
    with bed(tmp_path) as run:
        run.until("loss")
        home = run.homes[0]
        keys = sorted(path.relative_to(home) for path in home.rglob("*.key"))
        assert [str(key) for key in keys] == [
            "host-1.host.key", "members/ps-1/ps-1.server.key", "members/worker-1/worker-1.worker.key",
        ]  # fmt: skip
        assert {stat.S_IMODE((home / key).stat().st_mode) for key in keys} == {0o600}
        assert {stat.S_IMODE((home / key).parent.stat().st_mode) for key in keys} == {0o700}
        assert not list(run.job.folder.rglob("*ps-1*.key"))
        assert (home / "members/worker-1/program.pickle").stat().st_ino == (home / "program.pickle").stat().st_ino
        run.result()
        assert not run.left_behind()


# --- what may die


def test_a_member_of_another_host_that_is_killed_is_replaced_there(control: Result, tmp_path: Path) -> None:
    with bed(tmp_path) as run:
        run.until("loss")
        for victim, number in (("worker-1", 2), ("ps-1", 2)):
            os.kill(run.pid(victim), signal.SIGKILL)
            role = victim.split("-")[0]
            again = run.until(lambda e, name=f"{role}-{number}": e["event"] == "started" and e["name"] == name)
            assert again["site"] == "b/0"
            run.trains()
        assert run.sitting() == HALF
        assert run.result().digest == control.digest
        assert deaths(run) == ["worker-1", "ps-1"]
        assert not run.left_behind()


def test_a_launcher_that_is_killed_and_started_again_in_time_disturbs_no_process(
    control: Result, tmp_path: Path
) -> None:
    """The next one finds the members that run, and sees to their end."""
    with bed(tmp_path) as run:
        run.until("loss")
        run.launchers["b"].kill()
        run.launchers["b"].wait()
        run.bring("b", again=run.homes[0].name)
        run.until("host", n=2)
        run.trains()
        os.kill(run.pid("worker-1"), signal.SIGKILL)  # no child of this launcher
        run.until(lambda e: e["event"] == "started" and e["name"] == "worker-2")
        assert run.result().digest == control.digest
        assert deaths(run) == ["worker-1"]
        assert not run.left_behind()


def test_a_host_whose_launcher_is_away_for_two_leases_is_lost_and_can_come_back(
    control: Result, tmp_path: Path
) -> None:
    with bed(tmp_path) as run:
        run.until("loss")
        run.launchers["b"].kill()
        lost = run.until("lost_host")
        assert (lost["host"], sorted(lost["members"])) == ("b", ["ps-1", "worker-1"])
        run.trains()
        assert run.sitting() == {"a/0": (1, 1)}
        run.until(lambda _: not running(run.homes[0]))  # they were told to stop
        with pytest.raises(InputError, match="site 'b/0' is on host b, which is lost"):
            run.job.place(HALF)
        run.bring("b")
        run.until("host_back")
        run.place(HALF)
        assert run.sitting() == HALF
        assert run.result().digest == control.digest
        (run.homes[0] / "members").rename(tmp_path / "of the one that was killed")
        for path in run.homes[0].glob("[!l]*"):
            path.unlink()
        assert not run.left_behind()


def test_a_host_that_stands_still_for_too_long_is_told_to_end_its_members_when_it_is_back(
    control: Result, tmp_path: Path
) -> None:
    """A host of which nothing is heard: launcher and members stand still, and go on when all of them count as dead."""
    with bed(tmp_path) as run:
        run.until("loss")
        pids = [run.launchers["b"].pid, *running(run.homes[0]).values()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        run.until("lost_host")
        run.trains()
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        run.until("host_back")
        run.until(lambda _: not running(run.homes[0]))
        run.place(HALF)
        assert run.result().digest == control.digest
        assert not run.left_behind()


def test_training_over_two_hosts_goes_on_without_its_controller_and_places_still_hold(
    control: Result, tmp_path: Path
) -> None:
    with bed(tmp_path) as run:
        run.until("loss")
        run.job.place({"b/0": (2, 2)})
        run.until("registration")
        os.kill(run.job.pid, signal.SIGKILL)
        run.until("resumed")
        run.until("scaled")
        assert run.sitting() == {"b/0": (2, 2)}
        assert run.result().digest == control.digest
        assert not deaths(run)
        events = [e["event"] for e in run.events()]
        assert (events.count("again"), events.count("began")) == (1, 1)
        assert not run.left_behind()


def test_a_launcher_without_a_controller_ends_its_members_and_itself(tmp_path: Path) -> None:
    with bed(tmp_path, lease_s=0.5) as run:
        run.until("loss")
        run.job._controller.closing = True  # it is not started again
        os.kill(run.job.pid, signal.SIGKILL)
        assert run.launchers["b"].wait(HANG_S) == 0
        assert not running(run.homes[0])
        assert "no controller for 5.0 s" in (run.homes[0] / "launcher.log").read_text()
        assert not [path for path in run.homes[0].rglob("*") if path.suffix != ".log"]


def test_a_launcher_that_is_told_to_end_takes_its_members_along_and_the_job_hears_at_once(
    control: Result, tmp_path: Path
) -> None:
    with bed(tmp_path, lease_s=30.0) as run:
        run.until("loss")
        run.launchers["b"].terminate()
        assert run.launchers["b"].wait(HANG_S) == 0
        run.until("lost_host")  # long before two leases are over
        assert run.result().digest == control.digest
        assert not run.left_behind()


def test_a_job_whose_other_host_never_comes_trains_without_it(control: Result, tmp_path: Path) -> None:
    with bed(tmp_path, hosts="", lease_s=1.0) as run:
        lost = run.until("lost_host")
        assert lost["why"] == "its launcher has not connected"
        assert run.result().digest == control.digest
        assert not run.left_behind()


def test_a_host_that_is_not_needed_is_not_missed_and_may_come_when_it_is_needed(
    control: Result, tmp_path: Path
) -> None:
    """First it is not there, and then its launcher ends while no member is there."""
    with bed(tmp_path, hosts="", lease_s=1.0, place={"a/0": (1, 1)}) as run:
        run.until("loss")
        for place in (HALF, {"a/0": (1, 1)}):
            number = run.job.place(place)
            if place is HALF:
                run.bring("b")
            run.until(lambda e, n=number: e["event"] == "scaled" and e["scaling"] == n)
        run.launchers["b"].terminate()
        run.launchers["b"].wait(HANG_S)
        run.trains()
        run.job.place(HALF)
        run.bring("b")
        run.until("scaled", n=3)
        assert run.result().digest == control.digest
        assert "lost_host" not in [e["event"] for e in run.events()]
        assert not run.left_behind()


def test_a_job_that_is_stopped_before_its_hosts_have_come_ends_at_once(tmp_path: Path) -> None:
    with bed(tmp_path, hosts="", lease_s=30.0) as run:
        run.until("started")
        run.job.stop()
        run.until("over")
        assert not run.left_behind()


def test_if_all_members_are_on_a_host_that_is_lost_the_job_ends_by_name(tmp_path: Path) -> None:
    with bed(tmp_path, place={"b/0": (1, 1)}) as run:
        run.until("loss")
        run.launchers["b"].terminate()
        with pytest.raises(JobError, match="host b is lost, and the job has no member on another host"):
            run.result()


def test_the_second_launcher_of_a_host_takes_the_place_of_the_first(control: Result, tmp_path: Path) -> None:
    with bed(tmp_path) as run:
        run.until("loss")
        first = run.launchers["b"]
        run.bring("b")
        assert first.wait(HANG_S) == 0
        run.until("started", n=6)  # both members of b anew
        run.trains()
        assert run.sitting() == HALF
        assert run.result().digest == control.digest
        assert not run.left_behind()


def test_one_home_has_one_launcher(tmp_path: Path) -> None:
    with bed(tmp_path) as run:
        run.until("loss")
        first = run.launchers["b"]
        second = run.bring("b", again=run.homes[0].name)
        assert second.wait(HANG_S) != 0
        assert "another launcher runs in" in (run.homes[0] / "launcher.log").read_text()
        assert first.poll() is None
        run.launchers["b"] = first
        run.result()
        assert not run.left_behind()


# --- which process gets in, and what is refused


def test_only_the_launcher_of_a_host_can_speak_for_it(control: Result, tmp_path: Path) -> None:
    with bed(tmp_path) as run:
        run.until("loss")
        assert run.job._secrets is not None
        spec = two_hosts.said(run.job.folder / "job.json")
        mine = Authority.parse(run.job._secrets.authority, job=spec["reach"]["job"])
        other = Authority(spec["reach"]["job"])
        door = Address.parse((run.job.folder / "controller.address").read_text())
        for n, (authority, paper, name, role) in enumerate(
            [
                (other, "host-1.host", "host-1", "host"),
                (mine, "worker-0.worker", "host-1", "host"),
                (mine, "host-0.host", "host-0", "host"),
                (mine, "host-2.host", "host-1", "host"),
                (mine, "host-1.host", "ps-0", "server"),
                (mine, "host-1.worker", "host-1", "worker"),
            ]
        ):
            access = Access(certificates=authority.issue(paper, folder=tmp_path / f"keys{n}"))
            with pytest.raises(TransportError):
                connect(door, handler=Noting(), access=access, hello=hello(name, role))
        run.trains()
        assert run.launchers["b"].poll() is None
        assert run.result().digest == control.digest
        assert not deaths(run)


def test_a_launcher_may_not_command_the_job_nor_give_a_copy(tmp_path: Path) -> None:
    with bed(tmp_path, hosts="") as run:
        home = tmp_path / "mine"
        unpack(run.job.host_home("b"), home)
        spec = two_hosts.said(home / "job.json")
        papers = Certificates.of("host-1.host", job=spec["reach"]["job"], folder=home)
        door = Address.parse((home / "controller.address").read_text())
        bad = ((FrameKind.CLIENT_REQUEST, StopJob()), (FrameKind.SNAPSHOT, BlockState(version=0, moves=1)))
        for kind, message in bad:
            said = hello("host-1", "host")
            guest = connect(door, handler=Noting(), access=Access(certificates=papers), hello=said)
            with pytest.raises(TransportError):
                guest.request(kind, meta=encode(message)).result(HANG_S)
            guest.close()
        run.bring("b")
        run.until("loss")
        run.result()


@pytest.mark.parametrize(
    ("site", "what"),
    [
        ({"name": ""}, "a site named ''"),
        ({"name": "a b"}, "a site named 'a b'"),
        ({"name": "$(reboot)"}, r"a site named '\$\(reboot\)'"),
        ({"name": "-x"}, "a site named '-x'"),
        ({"host": "a\0"}, "is on a host named"),
        ({"devices": ("gpu0",)}, "has a device 'gpu0'; expected 'cpu', 'cuda:0' or 'gpu:0'"),
        ({"devices": ()}, "has a device ''"),
        ({"cores": (1, 1)}, r"has cores \(1, 1\)"),
        ({"cores": (-1,)}, r"has cores \(-1,\)"),
    ],
)
def test_a_site_that_makes_no_sense_is_refused(site: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        Site(**{"name": "a/0", "host": "a", **site})


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"network": "local"}, 'sites on hosts a, b, c with network="local"'),
        ({"network": "local", "sites": SITES[:1], "place": None}, 'has the address 127.0.0.1, and network="local"'),
        ({"sites": [SITES[0], SITES[0]]}, "2 sites are named 'a/0'"),
        ({"sites": [Site("a", "a", "0.0.0.0")], "place": None}, "'0.0.0.0' of site 'a' is no address"),
        ({"sites": [Site("a", "a", "192.0.2.1")], "place": None}, "cannot listen at tls://192.0.2.1:0"),
        ({"addresses": ["127.0.0.1"]}, "addresses 127.0.0.1 beside sites"),
        ({"devices": ["cpu"]}, "devices cpu beside sites"),
        ({"sites": ()}, "of a job without sites"),
        ({"place": {"d/0": (1, 1)}}, "unknown site 'd/0'"),
        ({"place": {"a/0": (1, 0)}}, r"a job with 0 servers"),
    ],
)
def test_sites_that_do_not_fit_are_refused_before_anything_starts(
    tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    with pytest.raises(InputError, match=what):
        Bed(tmp_path, **options)


def test_a_home_is_for_hosts_that_have_a_site_and_are_not_the_jobs_own(tmp_path: Path) -> None:
    with bed(tmp_path, hosts="") as run:
        for host, what in (("a", "is the job's home"), ("z", "has no site of the job; launchers are for b, c")):
            with pytest.raises(InputError, match=what):
                run.job.host_home(host)


def test_a_core_that_a_host_does_not_have_ends_a_job_that_begins_by_name(tmp_path: Path) -> None:
    sites = [SITES[0], Site("b/0", "b", "127.0.0.2", cores=(9999,))]
    with (
        bed(tmp_path, sites=sites) as run,
        pytest.raises(JobError, match=r"cannot be started: .*cannot have cores 9999"),
    ):
        run.result()


def test_a_place_with_cores_that_a_host_does_not_have_is_dropped_and_training_goes_on(
    control: Result, tmp_path: Path
) -> None:
    sites = [SITES[0], Site("b/0", "b", "127.0.0.2", cores=(9999,))]
    with bed(tmp_path, sites=sites, place={"a/0": (1, 1)}) as run:
        run.until("loss")
        run.place({"a/0": (1, 1), "b/0": (1, 0)})
        dropped = run.until("dropped")
        assert "worker-1 cannot be started" in dropped["why"]
        assert run.result().digest == control.digest


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/b", ".hidden", ""])
def test_an_archive_writes_nothing_but_files_of_the_home(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="which does not belong there"):
        unpack(packed({name: b"x"}), tmp_path / "home")
    assert not list(tmp_path.rglob("*evil*"))


def test_sites_of_one_host_need_no_network(control: Result, tmp_path: Path) -> None:
    sites = [Site("near", "here", devices=("cpu", "cpu")), Site("far", "here")]
    with bed(tmp_path, hosts="", sites=sites, network="local", place={"near": (1, 1)}) as run:
        run.until("loss")
        run.place({"near": (0, 1), "far": (2, 1)})
        assert run.sitting() == {"far": (2, 1), "near": (0, 1)}
        assert run.result().digest == control.digest
        assert not run.left_behind()
