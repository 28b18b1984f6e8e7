"""Folders from strangers: what a run, queue or sweep folder may hold to run code or write elsewhere."""
