"""Data loading that can resume: sharding over ranks, and the position within an epoch."""
