"""Starts the ranks of a training run, on one node or under srun, and ends them together.

Never imports PyTorch. What a rank does belongs in `ml.train`.
"""
