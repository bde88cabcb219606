#!/bin/bash
#SBATCH -c 4 --threads-per-core=1 --mincpus=4 --cores-per-socket=1

./x
