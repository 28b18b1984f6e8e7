"""Train the network of `attention`: `python -m reproductions.attention`."""

from reproductions.attention.trainer import main

main()
