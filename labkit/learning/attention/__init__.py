"""Training of `attention`: its traces in compiled code (`episodes`), and REINFORCE (`trainer`)."""
