"""The self-test of GPUs: a program that measures them with PyTorch, and the figures to expect."""
