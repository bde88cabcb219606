#!/bin/bash
#SBATCH --mem=0

./x
