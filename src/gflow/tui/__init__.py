"""gflow top: the live view of GPUs, jobs and logs in a terminal.

`queue_feed` and `log_feed` fetch data in threads. `gpu_lines` and `job_rows` turn data into lines, without
textual. `panels`, `dialogs` and `top_app` draw them and handle keys; only they import textual.
"""

from __future__ import annotations
