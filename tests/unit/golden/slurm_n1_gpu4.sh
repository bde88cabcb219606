#!/bin/bash
#SBATCH --job-name=smart_n1_gpu4
#SBATCH --account=lusu
#SBATCH --partition=a100-80gb
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=64
#SBATCH --time=2-00:00:00
#SBATCH --chdir=/home/ann/smart
#SBATCH --output=/home/ann/.local/share/gflow/logs/42.log
#SBATCH --comment=gflow:0123456789:42.1:0
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --export=ALL

id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
run=/home/ann/.local/share/gflow/slurm/gilbreth/"42.1"
bid=0
me=$run.claim.$bid.$id
if mv "$run.ticket" "$me" 2>/dev/null; then
  # A request that came late over a broken connection may have made a second token.
  for other in "$run".claim.*; do [ "$other" = "$me" ] || exit 0; done
else
  [ -e "$me" ] || exit 0
  # Slurm begins it a second time: whether it runs again is for gflow to say.
  [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || { echo requeued >"$run.new" && mv "$run.new" "$run.exit"; exit 0; }
fi
export GFLOW_ATTEMPT=1
export GFLOW_JOB_ID="42"
export GFLOW_STOP_FILE="$run.stop" GFLOW_PROGRESS="$run.progress"
unset GFLOW_DEADLINE GFLOW_END_TIME
if [ "$SLURM_JOB_END_TIME" ]; then GFLOW_END_TIME=$SLURM_JOB_END_TIME
elif [ 172800 = 0 ] || [ "$SBATCH_TIMELIMIT" ]; then :
else GFLOW_END_TIME=$(($(date +%s) + 172800)); fi
if [ "$GFLOW_END_TIME" ]; then
  export GFLOW_END_TIME
  read -r up _ </proc/uptime
  [ "$SLURM_JOB_NUM_NODES" != 1 ] || export GFLOW_DEADLINE=$((${up%.*} + GFLOW_END_TIME - $(date +%s)))
fi
script=/home/ann/t.sh
cmp -s /home/ann/.local/share/gflow/slurm/gilbreth/42.1.script /home/ann/t.sh || {
  echo 'gflow: the script has changed since it was submitted: running it as it was'
  script=/home/ann/.local/share/gflow/slurm/gilbreth/42.1.script; export PYTHONPATH="$(dirname /home/ann/t.sh)${PYTHONPATH:+:$PYTHONPATH}"
}
set -- bash "$script" --config a.yaml
told=
pass() { told=told again=1; kill -s "$1" "$child" 2>/dev/null; }
trap 'pass TERM' TERM
trap 'pass INT' INT
trap 'pass HUP' HUP
trap 'pass USR1' USR1
trap 'pass USR2' USR2
(trap - INT QUIT; exec "$@") <&0 &
child=$!
(trap - INT HUP USR1 USR2; trap 'kill "$nap"; exit' TERM
while :; do
  sleep 5 & nap=$!; wait "$nap"
  [ -e "$me" ] || { sleep 1; [ -e "$me" ] || ! [ -d "${me%/*}" ] || kill -s KILL 0; }
done) >/dev/null 2>&1 &
watcher=$!
again=1
while [ "$again" ]; do again=; wait "$child"; code=$?; done
kill "$watcher" 2>/dev/null
[ ! -e "$me" ] || { echo "$code $told" >"$run.new" && mv "$run.new" "$run.exit"; }
exit $code
