#!/bin/bash
#SBATCH --gpus-per-node=2 --mem-per-gpu=4G

./x
