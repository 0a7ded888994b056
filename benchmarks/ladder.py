"""What each part of the fast step gives, alone and cumulatively: tokens per second and peak host memory.

    python benchmarks/ladder.py --data CHATS --model FOLDER [--qlora] [--dtype float32] [--rows 4] [--json FILE]

The recipe of ``peers.py``. The first rung trains two padded chats for each packed row, with transformers' attention,
PEFT's layers and whole logits. Arms alternate, each in a process of its own.
"""

import sys
from typing import Any

from peers import PADDED_ROWS_PER_PACK, parser_of, run

from hf_efficient.trials.arms import Arm

PACKED: dict[str, Any] = {"model.attn_implementation": None, "train.loss_type": "nll", "adapter.fused": False}
PADDED = PACKED | {"train.packing": False}
DOCUMENTS = {"model.attn_implementation": "documents"}
LOSS = {"train.loss_type": "chunked_nll"}
FUSED = {"adapter.fused": True}
ALL = PACKED | DOCUMENTS | LOSS | FUSED
CHECKPOINTING = {"train.gradient_checkpointing": True}
COMPILED = {"model.compile_blocks": True}

RUNGS: dict[str, tuple[str, dict[str, Any]]] = {
    "padded": ("padded chats, no fast key", PADDED),
    "loss_alone": ("padded, loss on targets alone (train.loss_type)", PADDED | LOSS),
    "fused_alone": ("padded, LoRA layers and norms as one function each (adapter.fused)", PADDED | FUSED),
    "documents_alone": (
        "the same chats without padding, each document's attention by itself (train.padding_free)",
        PADDED | DOCUMENTS | {"train.padding_free": True, "train.max_length": None},
    ),
    "packed": ("packed, in place of padded (train.packing)", PACKED),
    "+documents": ("and each document's attention by itself (model.attn_implementation)", PACKED | DOCUMENTS),
    "+loss": ("and the loss on targets alone", PACKED | DOCUMENTS | LOSS),
    "+fused": ("and LoRA layers and norms as one function each", ALL),
    "+checkpointing": ("and activations computed again (train.gradient_checkpointing)", ALL | CHECKPOINTING),
    "+compiled": ("and blocks compiled, in place of computing again (model.compile_blocks)", ALL | COMPILED),
}


def main() -> int:
    asked = parser_of(__doc__).parse_args()
    names = asked.only.split(",") if asked.only else list(RUNGS)
    unknown = [name for name in names if name not in RUNGS]
    if unknown:
        raise SystemExit(f"--only: {unknown[0]!r} is no rung. The rungs are {', '.join(RUNGS)}.")
    padded = {"train.per_device_train_batch_size": PADDED_ROWS_PER_PACK * asked.rows}
    arms = [
        Arm(name, what, changes=keys if keys.get("train.packing", True) else keys | padded)
        for name, (what, keys) in RUNGS.items()
        if name in names
    ]
    run("ladder", arms, asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
