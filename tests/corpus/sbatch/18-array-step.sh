#!/bin/bash
#SBATCH --array=0-20:5
#SBATCH --mem=2G
# EXPECT memory=2048 array=0-20:5 calls=1

LINE=$(sed -n "$((SLURM_ARRAY_TASK_ID / SLURM_ARRAY_TASK_STEP + 1))p" /dev/null)
python task.py $LINE
