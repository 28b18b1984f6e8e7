"""Checkpoints: written atomically, verified when read, and how training resumes from one."""
