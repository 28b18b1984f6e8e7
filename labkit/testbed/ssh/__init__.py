"""Connections to hosts: commands, files, streams, keys."""
