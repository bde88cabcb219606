#!/bin/bash
#SBATCH --array=1,3,7-9
#SBATCH --time=30:00
# EXPECT time=1800 array=1,3,7-9 calls=1

lr=(0 .1 .2 .3 .4 .5 .6 .7 .8 .9)
python task.py --lr ${lr[$SLURM_ARRAY_TASK_ID]}
