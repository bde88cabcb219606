#!/bin/bash
#SBATCH -a 1-20:2%3 -c 2 --mem-per-cpu=500

./task.sh
