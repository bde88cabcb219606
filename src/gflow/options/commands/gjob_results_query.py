"""What gjob results asks the daemon for: its options as a query of /jobs."""

from __future__ import annotations

from gflow.options.commands.gjob_options import options_of
from gflow.options.parse import output_of

TYPE_CHECKING = False  # typing costs 15 ms to import
if TYPE_CHECKING:
    from typing import Any


def results_query(values: dict[str, Any], jobs: list[str]) -> tuple[str, dict[str, str]]:
    """The output format, and the query."""
    output = "csv" if "csv" in values else output_of(values, options_of("results"))
    states = [values["states"]] if "states" in values else []
    if "failed" in values:
        from gflow.job_states import FAILED_NAMES

        states += FAILED_NAMES
    return output, {
        "jobs": ",".join(jobs), "all": "1", "limit": "0", "sort": values.get("sort", ""),
        "states": ",".join(states), "form": "results" if output == "table" else f"results-{output}",
    }  # fmt: skip
