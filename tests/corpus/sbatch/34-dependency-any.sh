#!/bin/bash
#SBATCH --dependency=afterany:17
# EXPECT refused=gflow does not support the dependency 'afterany:17'

python report.py
