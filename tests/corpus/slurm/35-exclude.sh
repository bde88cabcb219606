#!/bin/bash
#SBATCH --exclude=node[1-2]
#SBATCH -N 2

srun ./x
