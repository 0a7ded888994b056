"""Two processes under DDP: whose work and whose wait a step holds, and one budget for both."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from tiny_training import records

from hf_efficient.accounting.account import load_run, read_account
from tests.conftest import read_steps

pytestmark = pytest.mark.slow

SLOW = 0.1
STEPS = 8
SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path[:0] = [{tests!r}]
import tiny_training
import torch
import torch.distributed as dist
from transformers import Trainer
from hf_efficient import EfficientTrainer

rank, out = int(os.environ["RANK"]), Path({out!r})

def train(kind, name, **settings):
    trainer = tiny_training.causal_trainer(kind, Path({model!r}), out / name, max_steps={steps}, **settings)
    if rank == 1:
        layer = next(one for one in trainer.model.modules() if type(one).__name__ == "LlamaDecoderLayer")
        layer.register_full_backward_pre_hook(lambda *_: time.sleep({slow}))
    before = dist.all_reduce, dist.all_gather
    trainer.train()
    assert (dist.all_reduce, dist.all_gather) == before
    assert not trainer.model_wrapped._forward_pre_hooks
    return trainer

train(EfficientTrainer, "ours", eval_strategy="steps", eval_steps=4, eval_rows=4)
tiny_training.assert_same_run(train(EfficientTrainer, "same"), train(Trainer, "theirs"))
dist.destroy_process_group()
"""
UNDER_A_BUDGET = """
import os, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
import tiny_training
from transformers import TrainerCallback
from hf_efficient import EfficientTrainer
from hf_efficient.callbacks import BudgetCallback
from hf_efficient.recording import budget as agreement, timeline as timelines
from hf_efficient.recording.timeline import Timeline
from hf_efficient.recording.meters import ProcessStart
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


def run_two(script: str, **values) -> None:
    """The script in two processes of one group, which must both end well."""
    script = script.format(tests=str(Path(__file__).parent), **values)
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"},
            **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"},
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        command = [sys.executable, "-c", script]
        ranks.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    try:
        for rank in ranks:
            _, errors = rank.communicate(timeout=120)
            assert rank.returncode == 0, errors
    finally:
        for rank in ranks:
            rank.kill()


@pytest.fixture(scope="module")
def run(tiny_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    run_two(SCRIPT, model=str(tiny_dir), out=str(out), slow=SLOW, steps=STEPS)
    return out / "ours"


def test_the_slow_rank_has_the_backward_and_the_other_one_the_wait(run):
    first = records(run)[2:]
    second = list(read_steps(run / "efficiency" / "steps.rank1.jsonl"))[2:]
    assert len(first) == len(second) == STEPS - 2
    wait, little = (median(step.phase_seconds["communication"] for step in steps) for steps in (first, second))
    short, long = (median(step.phase_seconds["backward"] for step in steps) for steps in (first, second))
    assert wait > SLOW / 2 > little  # of one step a busy machine makes what it likes
    assert long > SLOW > short + SLOW / 2


def test_waits_within_evaluations_are_told_beside_them(run):
    evaluated = [one for one in records(run) if "evaluation" in one.phase_seconds]
    assert len(evaluated) == 2
    for one in evaluated:
        assert 0 < one.waited_seconds["evaluation"] < one.phase_seconds["evaluation"]


def test_the_account_names_rank_phase_and_host(run):
    account = load_run(run)
    worst = account.across.skew[0]
    assert (worst.rank, worst.phase, worst.host) == (1, "backward", account.ranks[1].host)
    assert worst.host
    assert worst.extra_seconds == pytest.approx(SLOW * STEPS, rel=0.5)
    assert account.across.late_seconds > 0.25 * SLOW * STEPS
    assert account.across.covered_seconds is not None


def test_both_ranks_stop_after_the_same_step_of_a_budget(tiny_dir, tmp_path):
    """The second one knows nothing of what is spent."""
    out = tmp_path / "out"
    out.mkdir()
    run_two(UNDER_A_BUDGET, model=str(tiny_dir), out=str(out), seconds=61)
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
