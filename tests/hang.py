"""The one limit in seconds that tests have: beyond it something hangs. Below it nothing is too slow."""

HANG_S = 600.0
