#!/bin/bash
#SBATCH --mem=3G --time=1-12

./x
