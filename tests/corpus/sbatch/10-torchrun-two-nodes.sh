#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
# EXPECT gpus=4 tasks=1 ignored=--nodes calls=1

srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 4 train.py
