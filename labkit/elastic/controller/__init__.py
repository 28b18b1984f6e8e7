"""The controller of a job: a state machine, the process that runs it, and the parts of its state."""
