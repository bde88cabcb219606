"""Prediction of GPU memory and step time of training and serving, without a GPU.

Also the GPU catalogue and `gflow plan`. Their commands are in `cli.tools`, training itself in `ml.train`.
"""
