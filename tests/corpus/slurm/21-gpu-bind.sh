#!/bin/bash
#SBATCH -n 4 --gpus-per-task=a100:1 --gpu-bind=closest --mem-per-gpu=3G

srun python train.py
