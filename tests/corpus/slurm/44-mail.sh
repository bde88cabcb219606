#!/bin/bash
#SBATCH --mail-user=ann@example.org --mail-type=END,FAIL --wckey=k -J mails

./x
