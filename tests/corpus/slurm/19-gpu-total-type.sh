#!/bin/bash
#SBATCH --gpus=a100:3

python train.py
