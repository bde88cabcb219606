"""The GPUs of this machine: found, or simulated and marked as such."""
