#!/bin/bash
#SBATCH --ntasks=4 --gpus-per-task=1
#SBATCH --cpus-per-gpu=2

srun python train.py
