"""Three people, many short jobs, and everything is killed now and then. `make soak` takes ten thousand."""
