#!/bin/bash
#SBATCH --time=UNLIMITED
#SBATCH --gpus=1
# EXPECT gpus=1 calls=1

python train.py
