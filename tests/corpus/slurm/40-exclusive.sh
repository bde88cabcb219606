#!/bin/bash
#SBATCH -N 2 --exclusive --gpus-per-node=4

srun ./x
