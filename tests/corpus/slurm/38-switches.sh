#!/bin/bash
#SBATCH --switches=1@00:10:00 -N 2 --tmp=0

srun ./x
