"""The host agent: starts, watches, measures and ends processes on one host, for clients over SSH.

It is generic: it knows runs, tasks, leases and measurements, and nothing of training. What runs on the hosts imports
the standard library alone, so that it starts at once; `client` is what the other side of the connection uses.
"""
