#!/bin/bash
#SBATCH --gpus-per-node=4
#SBATCH --hold
#SBATCH --nice=100
#SBATCH --no-requeue
#SBATCH --open-mode=append
# EXPECT gpus=4 calls=1

cd $SLURM_SUBMIT_DIR
echo "$SLURM_JOB_NAME on $SLURM_JOB_NODELIST, GPUs $SLURM_JOB_GPUS"
accelerate launch run_clm.py
