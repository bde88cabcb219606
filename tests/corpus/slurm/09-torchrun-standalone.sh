#!/bin/bash
#SBATCH -G 2
#SBATCH -c 4
#SBATCH -t 30

torchrun --standalone --nproc_per_node 2 train.py
