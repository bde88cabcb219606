#!/bin/bash
#SBATCH --mail-type=BEGIN,END,FAIL
#SBATCH --mail-user=ann@lab.example
#SBATCH --gpus=1
# EXPECT gpus=1 calls=1

python train.py
