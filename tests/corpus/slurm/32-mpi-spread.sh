#!/bin/bash
#SBATCH -n 12 --spread-job

srun ./solver
