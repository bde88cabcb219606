#!/bin/bash
#SBATCH -c 4
#SBATCH --mem-per-cpu=1500
# EXPECT cpus=4 memory=6000 calls=1

python cpu.py
