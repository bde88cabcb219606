#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --gpus-per-task=4
#SBATCH --cpus-per-task=8

srun torchrun --nnodes 2 --nproc_per_node 4 train.py
