#!/bin/bash
#SBATCH --ntasks=16 --ntasks-per-node=8
#SBATCH --hint=nomultithread

srun --mpi=pmix ./solver
