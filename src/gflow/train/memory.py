"""Public name of `gflow.ml.train.memory`."""

from gflow.ml.train.memory import *  # noqa: F403
