#!/bin/bash
#SBATCH --array=0-9
#SBATCH --gpus=1

python train.py --seed $SLURM_ARRAY_TASK_ID
