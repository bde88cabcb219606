#!/bin/bash
#SBATCH --dependency=afterany:17
# EXPECT calls=1

python report.py
