#!/bin/bash
#SBATCH --gpus=1
#SBATCH --chdir=/tmp
# EXPECT gpus=1 calls=1

source ~/venv/bin/activate
srun --unbuffered python -u train.py
