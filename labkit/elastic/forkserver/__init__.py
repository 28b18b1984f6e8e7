"""Start processes of jobs by forking one that has their imports: see docs/why/fork-server.md."""
