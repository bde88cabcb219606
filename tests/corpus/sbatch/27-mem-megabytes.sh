#!/bin/bash
#SBATCH --mem=500
# EXPECT memory=500 calls=1

python cpu.py
