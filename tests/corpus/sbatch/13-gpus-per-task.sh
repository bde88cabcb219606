#!/bin/bash
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-task=1
# EXPECT gpus=4 cpus=8 tasks=4 calls=4

srun python train.py
