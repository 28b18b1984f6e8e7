"""Train the predictor of `deepsys`: `python -m reproductions.deepsys`."""

from reproductions.deepsys.training import main

main()
