#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --mem=4G
# EXPECT cpus=2 memory=4096 tasks=1 calls=1

export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun python cpu.py
