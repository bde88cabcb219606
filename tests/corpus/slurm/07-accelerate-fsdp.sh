#!/bin/bash
#SBATCH --nodes=2-4 --ntasks-per-node=1 --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --mem=0

srun accelerate launch --use_fsdp train.py
