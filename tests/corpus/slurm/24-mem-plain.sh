#!/bin/bash
#SBATCH --mem=2048

./x
