#!/bin/bash
#SBATCH -N 1-3 -n 8 --use-min-nodes

srun ./solver
