"""X1, X2, M2: links that break, freeze or crawl, and processes that stand still: no hang, no bit, no effect twice."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from labkit.elastic import fault
from labkit.elastic.transport import Address, Proxy
from tests.elastic.chaos.story import Story, many

LEASE_S = 1.5


@contextlib.contextmanager
def between(story: Story, **links: tuple[str, str]) -> Iterator[dict[str, Proxy]]:
    """Put a proxy before each (who connects, to whom); enter it before the story."""
    proxies, routes = {}, {}
    for name, (of, to) in links.items():
        there, here = story.folder / f"{to}.sock", story.folder / f"via-{name}"
        proxies[name] = Proxy(Address.parse(f"unix:{there}"), address=Address.parse(f"unix:{here}"))
        routes[f"{of}>{to}"] = f"unix:{here}"
    (story.folder / fault.ROUTES).write_text(json.dumps(routes))
    try:
        yield proxies
    finally:
        for proxy in proxies.values():
            proxy.close()


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


@pytest.mark.parametrize("seed", many(1))
def test_a_link_between_worker_and_server_may_break_crawl_and_freeze(seed: int) -> None:
    """It is made again, and what was on its way is asked for and pushed again."""
    rng = np.random.default_rng(seed)
    story = Story("X1 worker-server", scheme="unix", lease_s=LEASE_S, steps=160)
    with between(story, link=("worker-0", "ps-0")) as proxies, story:
        link = proxies["link"]
        for _ in range(3):
            story.stepped(int(rng.integers(1, 4)))
            wait(float(rng.uniform(0, 0.1)))
            link.cut()
        story.stepped(3)
        link.delay_s = 0.01
        story.stepped(6)
        link.delay_s = 0.0
        link.freeze()
        wait(0.4 * LEASE_S)
        link.thaw()
        story.stepped(3)
        link.freeze()
        wait(1.5 * LEASE_S)
        link.thaw()
        story.stepped(3).finish()
        assert not any(e["event"] in ("goes_back", "missed") for e in story.events)


@pytest.mark.parametrize("seed", many(1))
def test_a_link_between_servers_may_break_or_freeze_while_blocks_move(seed: int) -> None:
    story = Story("X1 server-server", scheme="unix", lease_s=LEASE_S, steps=200, save_every=5)
    with between(story, link=("ps-0", "ps-2"), other=("ps-1", "ps-3")) as proxies, story:
        proxies["link"].delay_s = 0.1 + 0.1 * (seed % 4)  # so that it freezes amid the stream
        story.at(3).scale(servers=1).happens("migration")
        proxies["link"].freeze()
        story.happens("scaled", "dropped", "goes_back")
        proxies["link"].thaw()
        story.stepped(3)
        story.scale(servers=1).happens("migration")
        proxies["other"].cut()
        story.happens("scaled", "dropped", "goes_back")
        story.stepped(3).finish()


@pytest.mark.parametrize("seed", many(1))
def test_a_link_to_the_controller_may_break_and_freeze_and_nobody_is_ended(seed: int) -> None:
    """Training does not notice; who was cut off comes back and is told what it has missed."""
    rng = np.random.default_rng(seed)
    story = Story("X1 controller", scheme="unix", lease_s=LEASE_S, steps=160)
    with between(story, ps=("ps-0", "controller"), worker=("worker-1", "controller")) as proxies, story:
        story.at(3)
        for name in ("ps", "worker"):
            story.gone(proxies[name].cut).happens("rejoined")
            story.stepped(3)
        story.scale(servers=1, workers=1)
        wait(float(rng.uniform(0, 2)))
        story.gone(proxies["ps"].cut).gone(proxies["worker"].cut)
        story.happens("scaled")
        proxies["worker"].freeze()
        wait(1.3 * LEASE_S)
        proxies["worker"].thaw()
        story.happens("rejoined")
        story.stepped(3).finish()
        assert not any(e["event"] in ("goes_back", "missed") for e in story.events)


@pytest.mark.parametrize("seed", many(1))
def test_who_stands_still_below_the_lease_is_not_dead_and_beyond_it_is_replaced(seed: int) -> None:
    """A controller that stands still keeps a second one out, which names it; when it goes on, all come back to it."""
    rng = np.random.default_rng(seed)
    with Story("X2 stopped below the lease", lease_s=LEASE_S, save_every=5, steps=240) as story:
        story.at(3)
        for name in ("worker-0", "ps-0"):
            with story.stopped(story.pids[name]):
                wait(float(rng.uniform(0.1, 0.5)) * LEASE_S)
            story.stepped(3)
        assert not any(e["event"] in ("goes_back", "missed", "rejoined") for e in story.events)
        story.row = "X2 stopped beyond the lease"
        for name in ("worker-0", "ps-0"):
            with story.gone().stopped(story.pids[name]):
                story.until(lambda e, name=name: e["event"] == "left" and e["name"] == name)
            story.until(
                lambda e, name=name: e["event"] == "joined" and e["role"] == ("worker", "server")[name == "ps-0"]
            )
        story.stepped(3)
        with story.stopped(story.job.pid):
            second = subprocess.run(
                [sys.executable, "-m", "labkit.elastic.control", str(story.folder)],
                capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
            wait(1.2 * LEASE_S)
        assert second.returncode == 1
        assert f"process {story.job.pid} is the controller of the job in {story.folder}: end it first." in second.stderr
        story.stepped(5).scale(servers=1).happens("scaled")
        story.stepped(3).finish()
        left = [e["name"] for e in story.events if e["event"] == "left" and not e["expected"]]
        assert left == ["worker-0", "ps-0"]
