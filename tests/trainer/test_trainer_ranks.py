"""Two processes under DDP: a rank's work and its waits are told apart, and nothing of the training changes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
from tiny_training import records

from hf_efficient.accounting.account import load_run
from hf_efficient.run_dir.reading import read_steps

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

train(EfficientTrainer, "ours", **every(evaluate=4), eval_rows=4)
tiny_training.assert_same_run(train(EfficientTrainer, "same"), train(Trainer, "theirs"))
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module")
def run(tiny_dir, tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    values = {"tests": str(Path(__file__).parent), "model": str(tiny_dir), "out": str(out)}
    script = SCRIPT.format(**values, slow=SLOW, steps=STEPS)
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
