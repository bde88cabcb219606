#!/bin/bash
#SBATCH -s -n 2 --overcommit

srun ./x
