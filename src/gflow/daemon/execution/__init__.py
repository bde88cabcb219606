"""Effects carried out: starting and stopping jobs, their environment, and hand-over to clusters."""
