#!/bin/bash
#SBATCH --time=UNLIMITED

./x
