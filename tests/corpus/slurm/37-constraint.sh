#!/bin/bash
#SBATCH -C ib&big --partition=main --contiguous -N 2

srun ./x
