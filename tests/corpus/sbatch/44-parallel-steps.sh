#!/bin/bash
#SBATCH --ntasks=2
#SBATCH --cpus-per-task=1
# EXPECT cpus=2 tasks=2 calls=2

srun -n1 --exact python a.py &
srun -n1 --exact python b.py &
wait
