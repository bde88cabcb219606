#!/bin/bash
#SBATCH --gpus=1   # one GPU is enough
#SBATCH # --gpus=8
# EXPECT gpus=1 calls=1

python train.py
