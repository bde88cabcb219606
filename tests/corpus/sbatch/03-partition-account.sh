#!/bin/bash
#SBATCH -p gpu
#SBATCH -A lab
#SBATCH --gpus=1
# EXPECT gpus=1 ignored=--partition calls=1

srun python train.py
