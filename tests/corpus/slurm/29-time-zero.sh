#!/bin/bash
#SBATCH -t 0 --nice=50

./x
