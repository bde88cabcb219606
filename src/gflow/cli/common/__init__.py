"""Parts that several commands share: error reports, status lines, log and terminal output."""
