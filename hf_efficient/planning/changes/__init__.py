"""What may be changed in a recipe so that it fits or runs faster: one change, one file.

To add a change: write a function that takes a ``Situation`` and returns a ``Change``, or None where it does not apply,
is already set, or could not matter; and name it in ``CHANGES``. A change that the run would not honour has no place
here. One that ``train`` refuses says so in what it costs, and ``--fix`` never writes it.
"""

from __future__ import annotations

from hf_efficient.planning.changes.change import Change, Proposer, Situation
from hf_efficient.planning.changes.checkpointing import checkpoint_activations
from hf_efficient.planning.changes.chunked_loss import chunked_loss
from hf_efficient.planning.changes.eight_bit_optimizer import eight_bit_optimizer
from hf_efficient.planning.changes.fsdp2 import shard_weights_by_fsdp
from hf_efficient.planning.changes.group_by_length import group_by_length
from hf_efficient.planning.changes.larger_micro_batch import larger_micro_batch
from hf_efficient.planning.changes.lora import train_an_adapter
from hf_efficient.planning.changes.mixed_float16 import mix_float16
from hf_efficient.planning.changes.no_checkpointing import store_activations
from hf_efficient.planning.changes.offload_optimizer import offload_the_optimizer
from hf_efficient.planning.changes.offload_parameters import offload_the_weights
from hf_efficient.planning.changes.packing import pack
from hf_efficient.planning.changes.paged_optimizer import paged_optimizer
from hf_efficient.planning.changes.qlora import quantize_the_base
from hf_efficient.planning.changes.sdpa import fused_attention
from hf_efficient.planning.changes.selective_checkpointing import checkpoint_every_second_layer
from hf_efficient.planning.changes.shorter_rows import shorter_rows
from hf_efficient.planning.changes.smaller_evaluation_batch import smaller_evaluation_batch
from hf_efficient.planning.changes.smaller_micro_batch import smaller_micro_batch
from hf_efficient.planning.changes.weights_in_bfloat16 import weights_in_bfloat16
from hf_efficient.planning.changes.zero2 import shard_gradients
from hf_efficient.planning.changes.zero3 import shard_weights_by_zero

__all__ = ["CHANGES", "Change", "Proposer", "Situation"]

CHANGES: tuple[Proposer, ...] = (
    mix_float16,
    group_by_length,
    smaller_evaluation_batch,
    fused_attention,
    chunked_loss,
    checkpoint_activations,
    checkpoint_every_second_layer,
    smaller_micro_batch,
    weights_in_bfloat16,
    eight_bit_optimizer,
    paged_optimizer,
    shard_gradients,
    shard_weights_by_zero,
    shard_weights_by_fsdp,
    offload_the_optimizer,
    offload_the_weights,
    quantize_the_base,
    train_an_adapter,
    pack,
    shorter_rows,
    store_activations,
    larger_micro_batch,
)
