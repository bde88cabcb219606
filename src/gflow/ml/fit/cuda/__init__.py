"""A fake CUDA device: allocator, kernels' workspaces and attention choices, without a GPU."""
