#!/bin/bash
# A training on a spot machine: when the cloud takes it away, it saves itself, and the job waits for the next one.
#   gbatch examples/spot.sh
# GFLOW --gpus 1
# GFLOW --requeue
gflow spot watch -- gflow launch "$(dirname "$GFLOW_SCRIPT")/ddp.py"
