"""Messages between the processes of a job, and the values in them."""
