#!/bin/bash
#SBATCH --gres=gpu:1,craynetwork:1
# EXPECT refused=gflow supports only GPUs

python train.py
