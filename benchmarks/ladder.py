"""What each part of the fast step gives, alone and cumulatively: tokens per second and peak host memory.

    python benchmarks/ladder.py --data CHATS --model FOLDER [--qlora] [--rounds 5] [--steps 12] [--json FILE]

The recipe of ``peers.py``. The first rung trains 8 padded chats a step with transformers' attention, PEFT's layers and
whole logits. Arms alternate, each in a process of its own.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from peers import by_recipe, compare, parser_of, work_of

PADDED = {"train.packing": "false", "train.per_device_train_batch_size": "8"}
PACKED = {"train.packing": "true"}
DOCUMENTS = {"model.attn_implementation": "documents"}
LOSS = {"train.loss_type": "chunked_nll"}
FUSED = {"adapter.fused": "true"}

RUNGS: dict[str, tuple[str, dict[str, str]]] = {
    "padded": ("8 padded chats a step, no fast key", PADDED),
    "loss_alone": ("padded, loss on targets alone (train.loss_type)", PADDED | LOSS),
    "fused_alone": ("padded, LoRA layers as one function (adapter.fused)", PADDED | FUSED),
    "packed": ("packed, in place of padded (train.packing)", PACKED),
    "+documents": ("and each document's attention by itself (model.attn_implementation)", PACKED | DOCUMENTS),
    "+loss": ("and the loss on targets alone", PACKED | DOCUMENTS | LOSS),
    "+fused": ("and LoRA layers as one function", PACKED | DOCUMENTS | LOSS | FUSED),
}


def main() -> int:
    asked = parser_of(__doc__).parse_args()

    def run(name: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            return by_recipe(work_of(asked, Path(folder)), RUNGS[name][1])

    names = asked.only.split(",") if asked.only else list(RUNGS)
    compare("ladder", {name: RUNGS[name][0] for name in names}, run, asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
