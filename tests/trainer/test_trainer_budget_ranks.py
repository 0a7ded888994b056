"""Two processes under one budget: the second one knows nothing of what is spent, and stops with the first."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hf_efficient.accounting.account import read_account

SCRIPT = """
import os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import tiny_training
from transformers import TrainerCallback
from hf_efficient import EfficientTrainer
from hf_efficient.callbacks import BudgetCallback
from hf_efficient.recording import budget as agreement, timeline as timelines
from hf_efficient.recording.timeline import Timeline
from hf_efficient.recording.clocks import ProcessStart
from hf_efficient.recording.system import SystemSampler

SECOND = 1_000_000_000
rank, clock, exchanges = int(os.environ["RANK"]), [0], []
SystemSampler.energy_joules = property(lambda self: 1000.0 + rank)
elsewhere = []
timelines._timeline = Timeline(lambda: clock[0], lambda: ProcessStart(0, "kernel"))

class Passing(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        elsewhere.append(timelines.process_timeline().live.elsewhere_joules)
        clock[0] += (2 if rank == 0 else 0) * SECOND  # time stands still for the second rank

settle = agreement.Agreement.settle
def noted(self, *args):
    exchanges.append(args[1] if rank == 0 else None)
    return settle(self, *args)
agreement.Agreement.settle = noted

out = Path({out!r})
trainer = tiny_training.causal_trainer(
    EfficientTrainer, Path({model!r}), out, callbacks=[Passing()],
    mixin={{"budget": BudgetCallback(hours={seconds} / 3600, kwh=1000, tell=print)}}, max_steps=60, logging_steps=50,
)
trainer.train()
(out / f"rank{{rank}}.txt").write_text(
    f"{{trainer.state.global_step}} {{len(exchanges)}} {{elsewhere[-1]}} {{trainer.budget_reached}}"
)
import torch.distributed as dist
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.slow
def test_both_ranks_stop_after_the_same_step(tiny_dir, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    script = SCRIPT.format(tests=str(Path(__file__).parent), model=str(tiny_dir), out=str(out), seconds=61)
    port, ranks = free_port(), []
    for rank in range(2):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        ranks.append(
            subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
        )
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()
    # 2 s a step of 61 s: another step no longer fits after step 30. Exchanges lie 5 steps (10 s) apart at most, from
    # 20 s before the end on half as far as there is room, so that none is later than it should be.
    first, second = ((out / f"rank{rank}.txt").read_text().split(" ", 3) for rank in range(2))
    assert first[0] == second[0] == "30"
    assert first[1] == second[1]
    assert int(first[1]) < 15
    assert (first[2], second[2]) == ("1001.0", "1000.0")  # what the other one's meters tell
    assert first[3].startswith("hours: 1 min 00 s of 1 min 01 s spent after step 30 of 60")
    assert sorted(path.name for path in out.glob("checkpoint-*")) == ["checkpoint-30"]
    assert read_account(out / "efficiency/run.json").money.budget.reached_at_step == 30
    assert json.loads((out / "checkpoint-30/trainer_state.json").read_text())["global_step"] == 30
