"""The daemon as a process: its lock, directories, log, in-place reload and CPU slices."""
