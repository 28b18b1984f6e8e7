"""A load on one core: `python -m labkit.testbed.profiling.spin [SECONDS]`, by default without end.

At the end it prints its work as JSON: loops, cpu_s, wall_s.
"""

from __future__ import annotations

import json
import sys
import time

LOOPS = 20_000


def spin(seconds: float) -> dict[str, float]:
    """Keep a core busy for some seconds; return what was done."""
    began, used, loops = time.monotonic(), time.process_time(), 0
    while time.monotonic() - began < seconds:
        for _ in range(LOOPS):
            pass
        loops += LOOPS
    return {"loops": loops, "cpu_s": time.process_time() - used, "wall_s": time.monotonic() - began}


if __name__ == "__main__":
    print(json.dumps(spin(float(sys.argv[1]) if len(sys.argv) > 1 else float("inf"))), flush=True)
