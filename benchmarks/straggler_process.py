"""A run of two ranks: started without RANK it starts both, with it it is one of them.

python straggler_process.py SPEC      SPEC: JSON with ``case`` (fields of StragglerCase), ``folder``, ``slow_seconds``
"""

import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from shared import free_port
from stragglers import StragglerCase
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, default_data_collator

from hf_efficient.trainer import EfficientTrainer

STEPS = 24
_LENGTH = 192
_VOCABULARY = 2048
_SHAPES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 192, "intermediate_size": 576, "num_hidden_layers": 4},
    "larger": {"hidden_size": 384, "intermediate_size": 1152, "num_hidden_layers": 6},
}


def train_rank(case: StragglerCase, rank: int, folder: Path, slow_seconds: float) -> None:
    """Train it to the end; its records go to those of the run.

    Args:
        case: the run.
        rank: of this process.
        folder: of the run; each rank has a checkpoint folder of its own in it.
        slow_seconds: that the slowed rank takes longer, per step or per save.
    """
    torch.manual_seed(0)
    vocabulary = 8192 if case.saves else _VOCABULARY  # a save that takes a few tenths of a second at least
    shape: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": vocabulary}
    model = LlamaForCausalLM(LlamaConfig(**shape, **_SHAPES[case.model], max_position_embeddings=_LENGTH))
    slow = _slowdown(case, slow_seconds) if rank == case.rank and case.slowed else None
    if slow is not None and case.slowed == "forward":
        model.model.layers[0].register_forward_pre_hook(lambda *_: slow())
    if slow is not None and case.slowed == "backward":
        model.model.layers[1].register_full_backward_pre_hook(lambda *_: slow())

    def collate(rows: list[Any]) -> Any:
        if slow is not None and case.slowed == "data":
            slow()
        return default_data_collator(rows)

    class Trainer(EfficientTrainer):
        """Its save is slow where that is planted; and every rank writes weights, as with ZeRO-3 and FSDP2.

        transformers' own ``_save`` writes them on rank 0 alone, whose saves then take a third longer than the others'.
        """

        def _save(self, output_dir: Any = None, state_dict: Any = None) -> None:
            Path(output_dir).mkdir(parents=True, exist_ok=True)
            torch.save(model.state_dict(), Path(output_dir) / "weights.pt")

        def _save_optimizer_and_scheduler(self, *args: Any, **kwargs: Any) -> Any:
            if slow is not None and case.slowed == "save":
                slow()
            return super()._save_optimizer_and_scheduler(*args, **kwargs)

    trainer = Trainer(
        model=model,
        args=_arguments(folder / f"rank{rank}", saves=case.saves),
        train_dataset=_Rows(),
        data_collator=collate,
        efficiency_dir=folder / "efficiency",
    )
    trainer.train()


def _arguments(folder: Path, *, saves: bool) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        per_device_train_batch_size=1 if saves else 4,  # so that saves are a good part of the time
        max_steps=STEPS,
        logging_steps=10,
        save_strategy="steps" if saves else "no",
        save_steps=2,
        save_total_limit=1,
        save_on_each_node=True,
        disable_tqdm=True,
        report_to="none",
        dataloader_pin_memory=False,
    )


class _Rows(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.randint(0, _VOCABULARY, (_LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": row, "labels": row}


def _slowdown(case: StragglerCase, seconds: float) -> Any:
    def sleep() -> None:
        time.sleep(seconds)

    def work() -> None:
        until, matrix = time.thread_time() + seconds, torch.ones(32, 32)
        while time.thread_time() < until:
            matrix @ matrix

    return sleep if case.how == "sleep" else work


def main() -> None:
    """Train, or start the two that do."""
    if "RANK" not in os.environ:
        sys.exit(_start_both())
    from hf_efficient.facts.environment import quieten_libraries

    quieten_libraries(debug=False)
    warnings.filterwarnings("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    spec = json.loads(sys.argv[1])
    case = StragglerCase(**spec["case"])
    train_rank(case, int(os.environ["RANK"]), Path(spec["folder"]), spec["slow_seconds"])
    _leave_group()


def _start_both() -> int:
    """Two nodes of one process each, on this machine, so that each saves for itself where the case says so."""
    group = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    group |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, **group, "RANK": str(rank)})
        for rank in range(2)
    ]
    return max(abs(one.wait()) for one in ranks)


def _leave_group() -> None:
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
