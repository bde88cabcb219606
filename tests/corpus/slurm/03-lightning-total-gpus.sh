#!/bin/bash
#SBATCH -N 2
#SBATCH --gpus=4
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=3

srun python train.py
