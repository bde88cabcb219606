#!/bin/bash
#SBATCH --export=ALL,WANDB_MODE=offline
#SBATCH --get-user-env
#SBATCH --gpus=1
# EXPECT gpus=1 ignored=--get-user-env calls=1

srun --export=ALL,SEED=1 python train.py
