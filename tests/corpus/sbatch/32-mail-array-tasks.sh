#!/bin/bash
#SBATCH --mail-type=ALL,ARRAY_TASKS
#SBATCH --mail-user=a@b.example
#SBATCH --array=1-3
# EXPECT array=1-3 calls=1

python task.py
