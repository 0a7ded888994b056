{{ activate }}command -v hf-efficient > /dev/null || {
  echo "error: $HOSTNAME: there is no hf-efficient on the PATH. {{ remedy }}" >&2
  exit 2
}
recipe=$(mktemp -d)/{{ name }}.yaml
cat > "$recipe" {{ document }}
# --resume where an earlier start of this job has begun to train, else nothing.
again=$(hf-efficient check-node {{ output_dir }} --job "$job" --attempt "$attempt" \
  --nodes {{ nodes }} --node-rank "$node_rank" --num-gpus {{ gpus }} --written-by {{ version }})
exec hf-efficient train "$recipe" {{ overrides }}{{ switch }}{{ flags }}{{ place }}
