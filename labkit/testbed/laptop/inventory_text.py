"""The inventory of a laptop testbed, and a configuration for the `ssh` command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from labkit.testbed.laptop.namespaces import proxy_command
from labkit.testbed.laptop.plan import BedPlan
from labkit.testbed.laptop.server import user_name


def inventory_text(plan: BedPlan, *, gpus: int, cpus: float | None, memory_gb: float | None, pods: int = 1) -> str:
    """Return the inventory of a bed; its hosts are divided among pods in order."""
    n = len(plan.spots)
    cpus = cpus if cpus is not None else max(round((os.cpu_count() or 1) / n, 2), 0.1)
    memory_gb = memory_gb if memory_gb is not None else max(round(_memory_gb() / n, 2), 0.1)
    proxy = proxy_command(plan, python=sys.executable)
    common = ({"proxy_command": proxy} if proxy else {}) | {
        "user": user_name(),
        "key": str(plan.key),
        "known_hosts": str(plan.known_hosts),
        "config": "none",
        "python": sys.executable,
        "folder": "~/.labkit",
    }
    lines = ["# The laptop testbed: written by `labkit bed up`, removed by `labkit bed down`.", "[ssh]"]
    lines += [f"{key} = {_toml(value)}" for key, value in common.items()]
    for i, spot in enumerate(plan.spots):
        own = {
            "name": spot.name,
            "gpus": gpus,
            "cpus": float(cpus),
            "memory_gb": float(memory_gb),
            "device_type": "laptop",
            "link_gbps": float(plan.shaped_gbps or 10),
        } | ({"pod": i * pods // n} if pods > 1 else {})
        lines += ["", "[[hosts]]", *(f"{key} = {_toml(value)}" for key, value in own.items())]
        lines.append(f"ssh = {{ address = {_toml(spot.address)}, port = {spot.port} }}")
    return "\n".join(lines) + "\n"


def ssh_config_text(plan: BedPlan) -> str:
    """Return a configuration for `ssh -F` that reaches the hosts by name."""
    blocks = [f"Host {spot.name}\n  HostName {spot.address}\n  Port {spot.port}\n" for spot in plan.spots]
    proxy = proxy_command(plan, python=sys.executable)
    common = ({"ProxyCommand": proxy} if proxy else {}) | {
        "User": user_name(),
        "IdentityFile": _quoted(plan.key),
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": _quoted(plan.known_hosts),
        "StrictHostKeyChecking": "yes",
    }
    return "".join([*blocks, "Host *\n", *(f"  {key} {value}\n" for key, value in common.items())])


def _quoted(path: Path) -> str:
    """Return a path in the syntax of ssh's configuration, where %h would mean the host."""
    return '"' + str(path).replace("%", "%%") + '"'


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _memory_gb() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError):
        return 4.0
