"""Measuring a testbed: what a simulation of it needs, in a profile.

`stage` has connections, agents and a run, which end with it; `trainee` is one job that is scaled from gang to
gang; `usage` measures resources of processes; `gangs` lists the gangs in order; `alone`, `beside` and `cores` measure;
`measure` does everything.
"""
