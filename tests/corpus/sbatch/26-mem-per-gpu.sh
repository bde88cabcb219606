#!/bin/bash
#SBATCH -G 2
#SBATCH --mem-per-gpu=40G
# EXPECT gpus=2 memory=81920 calls=1

python train.py
