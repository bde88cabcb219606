"""Checkpoints: what goes into one, the directory that holds them, and their durability on disk."""
