#!/bin/bash
#SBATCH --exclusive=user -c 2

./x
