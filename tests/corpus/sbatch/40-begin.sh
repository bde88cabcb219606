#!/bin/bash
#SBATCH --begin=now+1hour
#SBATCH --gpus=1
# EXPECT gpus=1 calls=1

python train.py
