#!/bin/bash
#SBATCH --nodelist=gpu01
#SBATCH --exclude=gpu02
#SBATCH --licenses=matlab:1
#SBATCH --gpus=1
# EXPECT gpus=1 ignored=--nodelist,--exclude,--licenses calls=1

python train.py
