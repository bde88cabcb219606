#!/bin/bash
#SBATCH -N 2 -n 8 --ntasks-per-node=4 --gres=gpu:4 --mem=14000

deepspeed --num_gpus 4 train.py
