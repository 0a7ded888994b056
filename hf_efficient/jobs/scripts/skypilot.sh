{#- A recovered job has the same SKYPILOT_TASK_ID, and other machines, or another number on the same ones. #}
set -euo pipefail
job=$SKYPILOT_TASK_ID
attempt=$(echo "$SKYPILOT_NODE_IPS ${SKYPILOT_INTERNAL_JOB_ID:-}" | cksum | cut -d " " -f 1)
node_rank=$SKYPILOT_NODE_RANK
{% if nodes > 1 %}
main_address=$(echo "$SKYPILOT_NODE_IPS" | head -n 1):{{ port }}
{% endif %}
