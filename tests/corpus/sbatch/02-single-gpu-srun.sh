#!/bin/bash
#SBATCH -J train
#SBATCH -G 1
#SBATCH -t 60
# EXPECT gpus=1 time=3600 calls=1

srun python train.py
