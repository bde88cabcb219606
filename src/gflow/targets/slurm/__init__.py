"""The Slurm target: runs jobs on a cluster through sbatch, squeue, scontrol, sacct and scancel.

One thread does all slow work, so that the daemon never waits for Slurm. Slurm's options for jobs of this
machine are in `options.slurm`.
"""
