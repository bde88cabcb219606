#!/bin/bash
#SBATCH --time=four hours
# EXPECT refused='hours' is not an option

python train.py
