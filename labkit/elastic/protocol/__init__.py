"""What the processes of a job say to each other, and the values that they exchange."""
