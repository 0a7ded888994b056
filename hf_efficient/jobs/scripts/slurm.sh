#!/usr/bin/env bash
{{ options }}
{{ written }}sbatch FILE

set -euo pipefail

{{ environment }}export job=$SLURM_JOB_ID attempt=${SLURM_RESTART_COUNT:-0}
{% if nodes > 1 %}
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
export main_address=${hosts[0]}:{{ port }}
{% endif %}

# What every machine runs.
IFS= read -r -d '' on_each_machine {{ document }}

# {{ grace }} s before the time limit the processes of the run get the signal to end.
time_is_up=""
trap 'time_is_up=1; scancel --signal=TERM "$SLURM_JOB_ID" || true' USR1
srun {{ srun_options }} \
  bash -c "$on_each_machine" &
step=$!
code=0
wait "$step" || code=$?
if [[ -n $time_is_up ]]; then  # the signal ended the wait, not the step
  code=0
  wait "$step" || code=$?
fi

if [[ -n $time_is_up && $code -ne 0 ]]; then
  if (( attempt < {{ restarts }} )); then
    echo "The time limit is near: the job goes back to the queue, and resumes from its last checkpoint."
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60  # Slurm ends this script
  fi
  echo "error: the time limit is near, and the job was started again {{ restarts }} times already (restarts)." >&2
fi
exit "$code"
