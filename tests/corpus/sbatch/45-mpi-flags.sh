#!/bin/bash
#SBATCH -N 1
#SBATCH -n 2
#SBATCH --hint=nomultithread
#SBATCH --distribution=block:block
# EXPECT cpus=2 tasks=2 ignored=--hint,--distribution calls=2

srun --mpi=pmix --cpu-bind=cores python mpi.py
