#!/bin/bash
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --time=1-00:00:00
# EXPECT gpus=2 cpus=2 tasks=2 time=86400 calls=2

srun python train.py
