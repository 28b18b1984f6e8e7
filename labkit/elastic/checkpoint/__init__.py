"""Checkpoints: written whole or not at all, and how training goes on from one."""
