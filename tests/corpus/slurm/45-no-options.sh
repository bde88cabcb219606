#!/bin/bash
#SBATCH -J plain

./x
