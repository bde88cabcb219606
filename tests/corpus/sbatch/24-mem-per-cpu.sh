#!/bin/bash
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=4
#SBATCH --mem-per-cpu=2G
# EXPECT cpus=8 memory=16384 tasks=2 calls=2

srun python cpu.py
