set -euo pipefail
node_rank=$PET_NODE_RANK
{% if nodes > 1 %}
main_address=$PET_MASTER_ADDR:{{ port }}
{% endif %}
{# The launcher would read PET_* as options of its own. #}
unset "${!PET_@}"
mkdir -p {{ shared }}
cd {{ shared }}
