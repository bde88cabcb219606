"""The GPUs of this machine: detected, or simulated and marked as such."""
