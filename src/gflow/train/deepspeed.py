"""Public name of `gflow.ml.train.deepspeed`."""

from gflow.ml.train.deepspeed import *  # noqa: F403
