#!/bin/bash
#SBATCH --gpus=6 --ntasks=6

srun python train.py
