#!/bin/bash
#SBATCH --time=2-12
#SBATCH --gpus=1
# EXPECT gpus=1 time=216000 calls=1

python train.py
