"""The backend over SSH: inventory, connections, host agent, laptop testbed, and what runs on the hosts."""
