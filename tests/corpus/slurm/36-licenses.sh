#!/bin/bash
#SBATCH -L matlab:2,ansys
#SBATCH -c 2

matlab -batch run
