#!/bin/bash
#SBATCH --array=0-3 --dependency=aftercorr:17
# EXPECT refused=gflow does not support the dependency 'aftercorr:17'

python evaluate.py --fold "$SLURM_ARRAY_TASK_ID"
