"""Install labkit's requirements on a host: `depend.py FOLDER NAME WHEELS INDEX REQUIREMENT...`.

NAME is the environment to make, WHEELS a folder on the host with all wheels, or empty for the host's own index, which
its pip.conf names. INDEX is a further index, or empty. Output of pip goes to stderr, the answer is a message in JSON.
The environment gets its name when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from typing import Any

from labkit.testbed.onhost.shared import send


def command(python: str, wheels: str, index: str, requirements: list[str]) -> list[str]:
    """Return the command line of pip."""
    source = ["--no-index", "--find-links", wheels] if wheels else ["--extra-index-url", index] if index else []
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return [python, "-m", "pip", "install", *quiet, *source, *requirements]


def install(partial: str, wheels: str, index: str, requirements: list[str]) -> dict[str, Any]:
    """Make an environment with the requirements; return an error, if any."""
    venv = subprocess.run([sys.executable, "-m", "venv", partial], stdout=sys.stderr.fileno(), check=False)
    if venv.returncode:
        return {
            "error": f"{sys.executable} cannot make an environment (exit {venv.returncode})",
            "hint": "apt-get install python3-venv there, or name another python in the inventory",
        }
    pip = subprocess.run(
        command(os.path.join(partial, "bin", "python"), wheels, index, requirements),
        stdout=sys.stderr.fileno(),
        check=False,
    )
    if pip.returncode:
        missing = "the wheelhouse lacks something" if wheels else "no index can be reached from there"
        return {
            "error": f"pip could not install what labkit needs (exit {pip.returncode})",
            "hint": f"see its output above; if {missing}: `fab install --wheelhouse DIR`, or --index URL",
        }
    return {}


def main(folder: str, name: str, wheels: str, index: str, *requirements: str) -> None:
    """Install, unless it is installed, and report the path of its Python."""
    os.umask(0o077)
    env = os.path.join(os.path.abspath(os.path.expanduser(folder)), "env")
    partial, final = os.path.join(env, ".making-" + name), os.path.join(env, name)
    python = os.path.join(final, "bin", "python")
    reply: dict[str, Any] = {"base": python}
    try:
        os.makedirs(env, mode=0o700, exist_ok=True)
        with open(os.path.join(env, ".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(python):
                shutil.rmtree(partial, ignore_errors=True)
                reply = install(partial, wheels and os.path.expanduser(wheels), index, list(requirements)) or reply
                if "error" in reply:
                    shutil.rmtree(partial, ignore_errors=True)
                else:
                    os.rename(partial, final)
                    shutil.rmtree((wheels and os.path.expanduser(wheels)) or partial, ignore_errors=True)
    except OSError as error:
        reply = {
            "error": f"{error.filename or env}: {error.strerror}",
            "hint": "give the host a folder in the inventory that its user may write, with room in it",
        }
    send(reply)


if __name__ == "__main__":
    main(*sys.argv[1:])
