#!/bin/bash
#SBATCH --gres=gpu:a100:2

python train.py
