"""Files of a project on a cluster: selection, snapshots here and there, results back."""
