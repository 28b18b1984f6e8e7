"""The tasks of testbed/fabfile.py, so that `fab` works here too."""

from testbed.fabfile import *  # noqa: F403
