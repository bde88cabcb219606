#!/bin/bash
#SBATCH --begin=tomorrow
#SBATCH --comment='nightly run'
# EXPECT calls=1

python nightly.py
