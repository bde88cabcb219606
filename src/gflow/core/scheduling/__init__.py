"""The scheduler: which job starts now, and on which GPUs.

Priority order, backfill against start reservations, placement, preemption, and eviction from reserved GPUs.
The data are in `core.state`; what an event does to a job is in `core.lifecycle`.
"""
