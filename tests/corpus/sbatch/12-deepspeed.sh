#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --gres=gpu:8
#SBATCH --mem=0
#SBATCH --exclusive
# EXPECT gpus=8 tasks=1 ignored=--exclusive calls=1

deepspeed --num_gpus=$SLURM_GPUS_ON_NODE train.py --deepspeed ds.json
