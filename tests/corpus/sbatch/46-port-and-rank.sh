#!/bin/bash
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
# EXPECT gpus=2 cpus=2 tasks=2 calls=2

export MASTER_PORT=$(expr 10000 + $(echo -n $SLURM_JOBID | tail -c 4))
export WORLD_SIZE=$(($SLURM_NNODES * $SLURM_NTASKS_PER_NODE))
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train.py'
