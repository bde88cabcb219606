"""Runs jobs on a Slurm cluster, through sbatch, squeue, scontrol, sacct and scancel."""
