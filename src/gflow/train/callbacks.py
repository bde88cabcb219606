"""Public name of `gflow.ml.train.callbacks`."""

from gflow.ml.train.callbacks import *  # noqa: F403
