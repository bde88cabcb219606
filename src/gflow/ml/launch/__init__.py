"""Starting the ranks of a training run, on one node or under srun."""
