#!/bin/bash
#SBATCH --time=1-01:30 --time-min=2:00:00

./x
