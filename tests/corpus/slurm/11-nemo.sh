#!/bin/bash
#SBATCH -p high --nodes=2 --gpus-per-node=4 --ntasks-per-node=4 --exclusive --mem=0 --time=04:00:00

srun python pretrain.py
