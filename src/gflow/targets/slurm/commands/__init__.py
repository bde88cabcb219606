"""Slurm's commands: run them, parse what they print, and name its reasons and refusals."""
