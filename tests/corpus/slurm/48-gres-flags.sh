#!/bin/bash
#SBATCH --gres=gpu:a100:1 --gres-flags=enforce-binding

./x
