#!/bin/bash
#SBATCH --array=1,3,7-9
#SBATCH --ntasks=1
#SBATCH --mem=2G

./task.sh
