"""Public name of `gflow.ml.fit.plan`."""

from gflow.ml.fit.plan import *  # noqa: F403
