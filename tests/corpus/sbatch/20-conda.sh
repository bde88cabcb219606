#!/bin/bash
#SBATCH --gpus=1
#SBATCH --mem=16G
# EXPECT gpus=1 memory=16384 calls=1

module purge
module load cuda/12.1
source ~/miniconda3/etc/profile.d/conda.sh
conda activate vision
python train.py
