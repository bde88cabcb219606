"""The daemon as a process: its lock, directories, log, TCP settings, in-place reload and CPU slices.

Code about jobs does not belong here. The commands that start and stop the daemon are in `cli.daemon`.
"""
