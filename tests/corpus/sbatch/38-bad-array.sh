#!/bin/bash
#SBATCH --array=10-1
# EXPECT refused=--array does not understand '10-1'

python train.py
