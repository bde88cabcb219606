#!/bin/bash -l
#SBATCH --gres=gpu:1
# EXPECT gpus=1 calls=1

module load anaconda
srun python train.py
