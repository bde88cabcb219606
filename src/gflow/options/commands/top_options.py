"""Options of gflow top."""

from __future__ import annotations

from gflow.options.job_options import COMMON

OPTIONS = COMMON
