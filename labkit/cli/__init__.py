"""The command line: a file for each command, what they share in `options` and `tables`, and `app` that joins them."""
