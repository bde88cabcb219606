#!/bin/bash
#SBATCH --mem=1T
#SBATCH --gpus=8
# EXPECT gpus=8 memory=1048576 calls=1

python train.py
