"""The processes of a job: starting and ending them, their connections, credentials, limits and use of resources."""
