#!/bin/bash
#SBATCH --dependency=afterok:17:18
#SBATCH --gpus=1
# EXPECT gpus=1 calls=1

python evaluate.py
