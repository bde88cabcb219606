#!/bin/bash
#SBATCH --gres=gpu:4
#SBATCH -n 4
# EXPECT gpus=4 cpus=4 tasks=4 calls=4

srun -n 4 --gpus-per-task=1 python rank.py
