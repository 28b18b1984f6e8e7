"""Bring labkit and what it needs to hosts."""
