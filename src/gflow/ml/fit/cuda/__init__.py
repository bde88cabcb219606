"""A fake CUDA device: allocator, workspaces of kernels and attention choices, without a GPU.

Models and recipes belong in `ml.fit.models` and `ml.fit`.
"""
