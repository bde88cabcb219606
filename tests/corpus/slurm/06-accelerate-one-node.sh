#!/bin/bash
#SBATCH --ntasks=1 --gpus-per-node=a100:4
#SBATCH --mem=12G -t 600

accelerate launch --multi_gpu train.py
