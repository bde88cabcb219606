#!/bin/bash
#SBATCH --gpus-per-node=3 -N 3

srun python train.py
