"""Examine the hosts of a testbed."""
