#!/bin/bash
#SBATCH --partition=main,low --nice

./x
