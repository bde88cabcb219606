#!/bin/bash
# A training run on a spot machine. On a termination notice it writes a checkpoint, and the job is requeued.
#   gbatch examples/spot.sh
# GFLOW --gpus 1
# GFLOW --requeue
gflow spot watch -- gflow launch "$(dirname "$GFLOW_SCRIPT")/ddp.py"
