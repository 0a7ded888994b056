"""ZeRO's checkpoints on another number of processes, by way of DeepSpeed's universal checkpoints. FSDP2's, which torch
writes as distributed checkpoints, are sharded anew by torch itself."""

from __future__ import annotations

import io
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_efficient.errors import OutputError
from hf_efficient.launch.checkpoints import layout_of_checkpoint

if TYPE_CHECKING:
    from transformers import Trainer

_SCRATCH = ".universal"  # in the output directory, which all machines share; until all have read it


@contextmanager
def resharding(trainer: Trainer) -> Iterator[None]:
    """Within, the trainer loads a checkpoint of ZeRO that another number of processes wrote. Raises ``OutputError``."""
    import transformers.trainer

    loader: Any = transformers.trainer
    args, load = trainer.args, loader.deepspeed_load_checkpoint

    def load_resharded(engine: Any, checkpoint: str, **options: Any) -> None:
        if layout_of_checkpoint(Path(checkpoint)).processes in (None, args.world_size):
            return load(engine, checkpoint, **options)
        folder = Path(str(args.output_dir), _SCRATCH)
        if args.process_index == 0:
            _convert(Path(checkpoint), folder)
        args.distributed_state.wait_for_everyone()
        groups = engine.optimizer.param_groups
        decays = [group.get("weight_decay") for group in groups]  # ZeRO-3 would give all groups that of the first
        engine._config.load_universal_checkpoint = True
        load(engine, str(folder), **options)
        engine._config.load_universal_checkpoint = False
        for group, decay in zip(groups, decays, strict=True):
            group["weight_decay"] = decay
        for state in engine.optimizer.optimizer.state.values():  # ZeRO-3 would count one step for each group
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()
        args.distributed_state.wait_for_everyone()
        if args.process_index == 0:
            shutil.rmtree(folder, ignore_errors=True)

    loader.deepspeed_load_checkpoint = load_resharded
    try:
        yield
    finally:
        loader.deepspeed_load_checkpoint = load


def _convert(checkpoint: Path, folder: Path) -> None:
    from deepspeed.checkpoint import ds_to_universal

    shutil.rmtree(folder, ignore_errors=True)
    shares = checkpoint / (checkpoint / "latest").read_text(encoding="utf-8").strip()
    options = Namespace(input_folder=str(shares), output_folder=str(folder / shares.name), strict=True)
    vars(options).update(num_extract_workers=1, num_merge_workers=1, keep_temp_folder=False, inject_missing_state=True)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            ds_to_universal.main(options)
    except KeyError as error:
        raise OutputError(
            f"distributed.processes: {checkpoint.name} has an optimizer state that DeepSpeed cannot shard among "
            f"other processes: it has no {error}, which Adam has. Keep the number of processes that wrote it."
        ) from error
