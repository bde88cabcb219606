#!/bin/bash
#SBATCH --qos=high
#SBATCH --constraint=a100
#SBATCH --gpus=2
# EXPECT gpus=2 ignored=--qos,--constraint calls=1

python train.py
