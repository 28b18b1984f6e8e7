"""Gavel: policies that turn a problem (columns) into an allocation, and the rounds that carry it out.

A policy is a file with a class of the same name and one method, `allocate(problem) -> Allocation`; it knows nothing of
rounds. To add one, put a file here: `labkit.schedulers.make` finds it as `gavel_<file>`, and as
`gavel_<file>_agnostic` if it has a switch `aware`.
"""
