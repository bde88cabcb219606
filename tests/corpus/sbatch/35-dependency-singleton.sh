#!/bin/bash
#SBATCH -d singleton
# EXPECT calls=1

python nightly.py
