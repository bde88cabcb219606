#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=4
# EXPECT gpus=1 cpus=4 calls=1

srun apptainer exec --nv image.sif python train.py
