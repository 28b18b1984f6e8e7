"""What every part may use: printing, progress, /proc, sockets, Ctrl-C, memory, which labkit this is."""
