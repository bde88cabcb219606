"""Pages for the terminal: tables, durations, the columns of gqueue. Also CSV, YAML and metrics."""
