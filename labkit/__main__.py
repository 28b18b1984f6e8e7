"""`python -m labkit` is the program `labkit`."""

from labkit.cli.app import main

main()
