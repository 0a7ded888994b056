"""A training that ends where it is asked to: what its ranks need to agree on that."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from hf_efficient.callbacks.stop_when_asked import StopWhenAsked
from hf_efficient.measure.stop_agreement import StopAgreement, StopStore
from hf_efficient.measure.stop_request import RunStopped, stop_request

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

__all__ = ["stoppable"]

_STORE_SECONDS = 20


@contextmanager
def stoppable(trainer: Trainer) -> Iterator[None]:
    """The training inside hears of a request to stop.

    Raises:
        RunStopped: it has stopped, on all ranks after the same step, and its checkpoint is whole.
    """
    callback = StopWhenAsked(stop_request(), _agreement(trainer.args, os.environ))
    trainer.add_callback(callback)
    try:
        yield
    finally:
        callback.close()
        trainer.remove_callback(callback)
    if callback.stopped_after is not None:
        trainer.args.distributed_state.wait_for_everyone()  # a launcher ends the others where one has ended
        raise RunStopped(callback.stopped_after, trainer.state.max_steps)


def _agreement(args: TrainingArguments, environment: Mapping[str, str]) -> StopAgreement:
    asked = lambda: stop_request().asked  # noqa: E731
    if args.world_size == 1 or "MASTER_ADDR" not in environment:
        return StopAgreement(asked)
    from accelerate.utils import broadcast_object_list

    prefix = [f"hf_efficient/stop/{uuid.uuid4().hex}"]  # what an earlier start left in the store is not read
    broadcast_object_list(prefix)
    return StopAgreement(asked, args.process_index, args.world_size, _store(environment), prefix[0])


def _store(environment: Mapping[str, str]) -> StopStore:
    """A connection of its own: one that waits would hold up those that share it."""
    from torch.distributed import TCPStore

    return TCPStore(
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=_STORE_SECONDS),
        wait_for_workers=False,
    )
