"""The client side of the command line: requests to the daemon, submissions, logs and terminals."""
