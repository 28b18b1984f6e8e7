"""A JupyterLab of our own on loopback, and a headless Chromium to look at it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from labkit.system.doctor import CHROMIUM_NAMES, which
from tests.hang import HANG_S

OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]


class Browser:
    """A headless Chromium whose pages wait for what is to come as long as all tests do."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def new_page(self, **options: Any) -> Any:
        """Open a page of Playwright with its options."""
        page = self._opened.new_page(**options)
        page.set_default_timeout(HANG_S * 1000)
        return page


@contextmanager
def headless() -> Iterator[Browser]:
    """Start Chromium, and end it afterwards; the test is skipped where Chromium or Playwright is not here."""
    path = next((where for name in CHROMIUM_NAMES if (where := which(name))), "")
    if not path:
        pytest.skip("Chromium is not here; apt-get install chromium fonts-dejavu-core")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not here; pip install -e .[dev]")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=OPTIONS, timeout=HANG_S * 1000)
        yield Browser(opened)
        opened.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def jupyter_lab(folder: Path, *, home: Path) -> Iterator[str]:
    """Serve a folder with JupyterLab, isolated in `home`; yield the address of a notebook, less its name."""
    port, token = _free_port(), secrets.token_hex(16)
    settings = home / "user-settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    names = {
        "config": "JUPYTER_CONFIG_DIR",
        "data": "JUPYTER_DATA_DIR",
        "run": "JUPYTER_RUNTIME_DIR",
        "i": "IPYTHONDIR",
    }
    env = os.environ | {variable: str(home / name) for name, variable in names.items()}
    options = [
        "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--ServerApp.port_retries=0",
        f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True",
        "--LabApp.news_url=None", "--LabApp.extension_manager=readonly",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", f"--LabApp.workspaces_dir={home / 'w'}",
        f"--LabApp.user_settings_dir={home / 'user-settings'}", "--ServerApp.terminals_enabled=False", "--allow-root",
    ]  # fmt: skip
    with (home / "lab.log").open("w") as log:
        lab = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *options], env=env, stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            _await_server(f"http://127.0.0.1:{port}/api/status?token={token}", lab, home / "lab.log")
            yield f"http://127.0.0.1:{port}/doc/tree/{{}}?token={token}&reset"
        finally:
            _shut_down(f"http://127.0.0.1:{port}/api/shutdown?token={token}", token, lab)


def _await_server(address: str, lab: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + HANG_S
    while time.monotonic() < until and lab.poll() is None:
        try:
            with urlopen(address, timeout=5):
                return
        except (URLError, OSError):
            time.sleep(0.3)
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


def _shut_down(address: str, token: str, lab: subprocess.Popen[bytes]) -> None:
    request = Request(address, method="POST", headers={"Authorization": f"token {token}"})
    try:
        urlopen(request, timeout=10).close()
        lab.wait(HANG_S)
    except (URLError, OSError, subprocess.TimeoutExpired):
        lab.kill()
        lab.wait(HANG_S)


def copy_for_lab(notebooks: Path, traces: Path, folder: Path) -> None:
    """Copy notebooks and traces, so that the browser changes nothing of ours."""
    shutil.copytree(notebooks, folder / "notebooks", ignore=shutil.ignore_patterns(".ipynb_checkpoints"))
    shutil.copytree(traces, folder / "traces")
