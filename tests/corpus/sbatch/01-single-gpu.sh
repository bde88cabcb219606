#!/bin/bash
#SBATCH --job-name=train
#SBATCH --gres=gpu:1
#SBATCH --time=04:00:00
# EXPECT gpus=1 time=14400 calls=1

python train.py
