#!/bin/bash
#SBATCH --nodes=1 --gpus-per-node=4 --cpus-per-task=2
#SBATCH --time=0-02:00:00

python train.py --devices 4
