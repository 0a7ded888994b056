"""One process trains on one GPU, however many it sees."""

from __future__ import annotations

from transformers import TrainingArguments

__all__ = ["keep_to_one_device", "one_device_remark"]


def keep_to_one_device(args: TrainingArguments) -> None:
    """Leave torch's DataParallel off, which transformers turns on for a process alone that sees several GPUs.

    It would take as many times the rows of the recipe in a step, cannot shard anything, and is slower than DDP, which
    torch's documentation recommends in its place. transformers itself turns it off by the same attribute
    (``Trainer.__init__``, models that are spread over several devices).

    Args:
        args: changed.
    """
    if args.n_gpu > 1:
        args._n_gpu = 1


def one_device_remark(args: TrainingArguments, device_count: int) -> str | None:
    """What to tell where GPUs are left idle.

    Args:
        args: of the training.
        device_count: accelerators that this process sees.
    """
    if args.world_size > 1 or device_count < 2 or args.device.type == "cpu":
        return None
    return (
        f"one process trains on the first of {device_count} GPUs; `hf-efficient train` with `distributed.processes: "
        "auto`, which is the default, starts one on each"
    )
