"""The scheduler: which job starts now, and on which GPUs.

Priority order, backfill against start reservations, placement, preemption, and eviction from reserved GPUs.
"""
