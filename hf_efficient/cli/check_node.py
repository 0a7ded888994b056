"""``hf-efficient check-node``: what every machine of a cluster's job does before it trains."""

import socket
import sys
from pathlib import Path
from typing import Annotated

import typer


def check_node(
    output_dir: Annotated[Path, typer.Argument(metavar="OUTPUT_DIR", help="The run directory, on shared storage.")],
    job: Annotated[str, typer.Option("--job", help="Name of the job on the cluster, the same at every start.")],
    attempt: Annotated[str, typer.Option("--attempt", help="Number or name of this start of the job.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Machines of the job.")] = 1,
    node_rank: Annotated[int, typer.Option("--node-rank", min=0, help="This one's number, from 0.")] = 0,
    gpus: Annotated[int, typer.Option("--num-gpus", min=0, help="GPUs that torch must see here.")] = 0,
    written_by: Annotated[str | None, typer.Option("--written-by", help="Version that wrote the job.")] = None,
    patience: Annotated[float, typer.Option("--patience", min=0, help="Seconds to wait for the others.")] = 900,
) -> None:
    """Check GPUs, versions and the shared storage; jobs of `hf-efficient submit` call it on every machine.

    Prints --resume where an earlier start of the job has begun to train.

    Example: hf-efficient check-node /mnt/runs/a --job 7 --attempt 0 --nodes 2 --node-rank 1 --num-gpus 8
    """
    from hf_efficient.errors import SetupError
    from hf_efficient.jobs.nodes import Machine, answer, check_gpus, same_versions, started_before
    from hf_efficient.launch.checkpoints import EFFICIENCY, RESOLVED
    from hf_efficient.version import __version__

    own = Machine(node_rank, socket.gethostname(), __version__)
    if node_rank >= nodes:
        raise SetupError(f"--node-rank: is {node_rank}, but --nodes {nodes} counts from 0 to {nodes - 1}.")
    check_gpus(gpus, own.host)
    machines = answer(output_dir, job, attempt, own, nodes, patience=patience)
    same_versions(machines)
    if written_by is not None and written_by != own.version:
        print(f"The job was written by hf_efficient {written_by}; {own.host} has {own.version}.", file=sys.stderr)
    if node_rank == 0:
        who = f"{nodes} machines" if nodes > 1 else own.host
        print(f"{who}: hf_efficient {own.version}, {gpus or 'no'} GPUs asked for, {output_dir}", file=sys.stderr)
    if started_before(output_dir, job, attempt, output_dir / EFFICIENCY / RESOLVED):
        print("--resume")
