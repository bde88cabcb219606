#!/bin/bash
#SBATCH --distribution=block:cyclic -n 4 -N 2

srun ./x
