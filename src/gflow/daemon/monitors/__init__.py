"""Background observers: GPUs, leases, idle GPUs, spot notices, job progress, maintenance."""
