"""Measuring a testbed: what a simulation of it needs, in a profile.

`stage` has connections, agents and a run of its own, all of it gone at the end; `trainee` is one job that walks through
gangs by hot scaling; `usage` says what processes use; `gangs` which gangs in which order; `alone`, `beside` and `cores`
measure; `measure` does all of it.
"""
