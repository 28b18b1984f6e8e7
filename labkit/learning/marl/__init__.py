"""Training the placement policy: whole traces in compiled code (`episodes`), lessons and rounds (`trainer`)."""
