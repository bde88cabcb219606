#!/bin/bash
#SBATCH --gres=gpu

python train.py
