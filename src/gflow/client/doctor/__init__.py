"""`gflow doctor`: reads the facts of this machine and of jobs, and runs the self-test of GPUs."""
