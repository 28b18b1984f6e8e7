"""How fast a job trains: measured tables, step time over the network, fits of speed, loss and interference."""
