"""Background observers: GPUs, leases, idle GPUs, spot notices, job progress, maintenance.

A monitor posts events to the loop and never changes the engine's state. NVML calls belong in `gpu`.
"""
