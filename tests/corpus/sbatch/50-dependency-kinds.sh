#!/bin/bash
#SBATCH --job-name=cleanup
#SBATCH -d afternotok:17,after:18,singleton
# EXPECT calls=1

python cleanup.py
