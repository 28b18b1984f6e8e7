"""What all processes of a job share: how they start, prove who they are, are limited, and end."""
