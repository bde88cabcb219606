#!/bin/bash
#SBATCH --deadline=2030-01-01T00:00:00 --time=10 --reboot

./x
