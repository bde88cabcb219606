#!/bin/bash
#SBATCH -w node2 -N 2

srun ./x
