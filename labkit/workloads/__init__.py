"""Workloads: the model catalogue, published throughputs, and traces: generated, read, described and fetched.

To read one more kind of trace, add a file to `readers/` and name it in `readers.FORMATS`.
"""

from labkit.workloads.catalogue import Model, model, models
from labkit.workloads.describe import describe, info, offered_load, scaled, with_epoch_error
from labkit.workloads.dl2_traces import dl2_jobs
from labkit.workloads.gavel import EstimatedThroughput, Throughputs
from labkit.workloads.gavel_traces import gavel_jobs
from labkit.workloads.generators import catalogue_jobs, philly_like
from labkit.workloads.marl_traces import marl_jobs
from labkit.workloads.readers import read, write
from labkit.workloads.split import split
from labkit.workloads.windows import window

__all__ = [
    "EstimatedThroughput",
    "Model",
    "Throughputs",
    "catalogue_jobs",
    "describe",
    "dl2_jobs",
    "gavel_jobs",
    "info",
    "marl_jobs",
    "model",
    "models",
    "offered_load",
    "philly_like",
    "read",
    "scaled",
    "split",
    "window",
    "with_epoch_error",
    "write",
]  # fmt: skip
