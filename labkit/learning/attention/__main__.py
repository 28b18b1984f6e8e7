"""Train the network of `attention`: `python -m labkit.learning.attention`."""

from labkit.learning.attention.trainer import main

main()
