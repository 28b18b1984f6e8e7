"""Train the network of `attention`: `python -m labkit.learning.attention`."""

from reproductions.attention.trainer import main

main()
