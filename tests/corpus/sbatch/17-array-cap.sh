#!/bin/bash
#SBATCH -a 1-100%4
#SBATCH -c 1
# EXPECT cpus=1 array=1-100 calls=1

srun python task.py $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_TASK_MAX
