#!/bin/bash
#SBATCH --gpus=2
#SBATCH --cpus-per-gpu=8
#SBATCH --mem-per-gpu=32G
# EXPECT gpus=2 cpus=16 memory=65536 calls=1

accelerate launch --num_processes $SLURM_GPUS --main_process_port $((10000 + SLURM_JOB_ID % 20000)) train.py
