#!/bin/bash
#SBATCH -d singleton
# EXPECT refused=gflow does not support the dependency 'singleton'

python nightly.py
