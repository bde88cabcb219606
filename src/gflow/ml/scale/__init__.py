"""Scaling measurements: a training script run at several sizes, and the analysis of the results."""
