"""Data loading that can resume: sharding over ranks, and the position within an epoch.

Batch sizes and gradient accumulation belong in `ml.train`.
"""
