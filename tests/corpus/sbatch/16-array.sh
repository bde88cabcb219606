#!/bin/bash
#SBATCH --array=0-9
#SBATCH --gres=gpu:1
#SBATCH --output=logs/%A_%a.out
# EXPECT gpus=1 array=0-9 calls=1

python train.py --seed $SLURM_ARRAY_TASK_ID
