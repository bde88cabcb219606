#!/bin/bash
#SBATCH -n 2
#SBATCH --gpus-per-task=v100:2
# EXPECT gpus=4 cpus=2 tasks=2 calls=2

srun python train.py
