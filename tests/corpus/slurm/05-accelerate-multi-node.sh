#!/bin/bash
#SBATCH --job-name=multinode
#SBATCH --nodes=4                   # number of nodes
#SBATCH --ntasks-per-node=1         # number of MP tasks
#SBATCH --gres=gpu:4                # number of GPUs per node
#SBATCH --cpus-per-task=8           # number of cores per tasks
#SBATCH --time=01:59:00             # maximum execution time

srun accelerate launch --num_processes 16 --num_machines 4 train.py
