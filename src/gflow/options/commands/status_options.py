"""Options of gflow status."""

from __future__ import annotations

from gflow.options.job_options import COMMON, JSON

OPTIONS = (JSON, *COMMON)
