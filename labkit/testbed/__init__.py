"""The testbed: the same schedulers on machines over SSH, where jobs train on the elastic runtime."""
