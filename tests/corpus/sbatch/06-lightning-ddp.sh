#!/bin/bash
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=8
#SBATCH --signal=SIGUSR1@90
# EXPECT gpus=4 cpus=32 tasks=4 calls=4

export NCCL_DEBUG=INFO
srun python train.py --devices 4
