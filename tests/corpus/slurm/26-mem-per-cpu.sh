#!/bin/bash
#SBATCH -n 6 --mem-per-cpu=1G

srun ./x
