"""What every machine of a job runs: check itself and the others, then train."""

from __future__ import annotations

import shlex

from hf_efficient.cluster.job import Job

__all__ = ["environment_lines", "here_document", "node_script"]

_SCRIPT = """\
{activate}command -v hf-efficient > /dev/null || {{
  echo "error: $HOSTNAME: there is no hf-efficient on the PATH. {remedy}" >&2
  exit 2
}}
recipe=$(mktemp -d)/{name}.yaml
cat > "$recipe" {document}
# --resume where an earlier start of this job came to train, else nothing.
again=$(hf-efficient check-node {output_dir} --job "$job" --attempt "$attempt" \\
  --nodes {nodes} --node-rank "$node_rank" --gpus {gpus} --written-by {version})
exec hf-efficient train "$recipe" {switch}{debug}{place}
"""


def node_script(job: Job, *, remedy: str) -> str:
    """Shell lines that expect ``job``, ``attempt``, ``node_rank`` and, for several machines, ``main_address``.

    The last one becomes ``hf-efficient train``: the signal to end reaches it, and it passes it on to the training.

    Args:
        job: the job.
        remedy: what to do where hf_efficient is not installed.
    """
    activate = job.cluster.activate
    return _SCRIPT.format(
        # What sites and environments provide rarely bears unset variables.
        activate=f"set +u\n{activate.rstrip()}\nset -u\n" if activate else "",
        remedy=remedy,
        name=job.name,
        document=here_document(job.recipe, "END_OF_RECIPE"),
        output_dir=shlex.quote(job.output_dir),
        nodes=job.nodes,
        gpus=job.processes if job.gpus is not None else 0,
        version=job.version,
        switch=f'"${{again:-{job.switch}}}"' if job.switch else '${again:+"$again"}',
        debug=" --debug" if job.debug else "",
        place=' --node-rank "$node_rank" --main-address "$main_address"' if job.nodes > 1 else "",
    )


def environment_lines(job: Job) -> str:
    """``export NAME=value`` for every variable of the cluster's description."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.cluster.env.items())


def here_document(text: str, end: str, after: str = "") -> str:
    """``<<'END'``, the text as it is, and an end, made longer where a line of the text is the same.

    Args:
        text: of the document.
        end: its last line.
        after: what follows on the first line, `` || true`` for instance.
    """
    lines = text.rstrip("\n").split("\n")
    while end in lines:
        end += "_"
    return "\n".join([f"<<'{end}'{after}", *lines, end])
