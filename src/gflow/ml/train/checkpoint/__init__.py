"""Checkpoints: what goes into one, the directory that holds them, and their durability on disk.

When to save or stop is decided in `ml.train.run`.
"""
