"""Workloads: the model catalogue, published throughputs, and traces: generated, read, described and fetched.

To read one more kind of trace, add a file to `readers/` and name it in `readers.FORMATS`.
"""
