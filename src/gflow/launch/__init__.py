"""Starting the processes of a training run."""
