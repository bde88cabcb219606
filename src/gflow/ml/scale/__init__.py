"""Scaling measurements: a training script run at several sizes, and the analysis of the results.

Measuring inside the script belongs in `ml.train.metering`, tables for terminals in `text`.
"""
