#!/bin/bash
#SBATCH --ntasks=2
#SBATCH --gpus=2
# EXPECT gpus=2 cpus=2 tasks=2 calls=3

srun -n 1 python prepare.py
srun python train.py
