"""Prediction of GPU memory and step time of training and serving, without a GPU."""
