"""Optimisation kernels: arrays in, arrays out, no cluster in sight."""
