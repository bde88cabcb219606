"""The GPUs of this machine: detected by NVML or simulated, their processes, health and idle times.

Assigning GPUs to jobs belongs in `core`, polling in `daemon.monitors`. Nothing here changes a GPU.
"""
