"""Compare the ports with plain torch, and print the table."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.ports import HEAD, NAMES, outcomes


def main() -> int:
    """Print a line for each script; return 1 if fewer than 18 of 20 train as their authors meant."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ports")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--faults", action="store_true", help="kill and scale the job of three workers meanwhile")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    print(HEAD, flush=True)
    for outcome in outcomes(options.names, steps=options.steps, faults=options.faults):
        found.append(outcome)
        print(outcome.line(), flush=True)
    right = sum(outcome.right for outcome in found)
    print(f"\n{right} of {len(found)} train as meant.")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in found], indent=1))
    return 0 if len(found) - right <= 2 else 1


if __name__ == "__main__":
    raise SystemExit(main())
