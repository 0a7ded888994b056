from __future__ import annotations

from types import SimpleNamespace

import torch

from hf_efficient.isolate import measuring as held_batches
from hf_efficient.isolate.measuring import hold_batches, step_batches


class Loader:
    """Three batches an epoch: each holds its epoch and its place."""

    dataset = range(3)

    def __init__(self) -> None:
        self.epoch, self.ended, self.loaded = 0, 0, 0

    def __len__(self) -> int:
        return 3

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for place in range(3):
            self.loaded += 1
            yield {"input_ids": torch.tensor([[self.epoch, place]]), "note": "text"}

    def end(self):
        self.ended += 1


def trainer(loader, accumulation=2):
    args = SimpleNamespace(gradient_accumulation_steps=accumulation, device=torch.device("cpu"))
    return SimpleNamespace(args=args, get_train_dataloader=lambda: loader)


def places(batches):
    return [tuple(batch["input_ids"][0].tolist()) for batch in batches]


def test_a_step_takes_what_is_left_of_an_epoch_as_the_trainer_does():
    loader = Loader()
    steps = [places(batches) for batches in step_batches(trainer(loader), loader, 3)]
    assert steps == [[(0, 0), (0, 1)], [(0, 2)], [(1, 0), (1, 1)]]


def test_one_of_two_processes_takes_every_other_batch():
    held = hold_batches(trainer(Loader()), 2, share=2)
    assert len(held) == 2
    assert places(held) == [(0, 0), (0, 2)]
    held.set_epoch(1)
    assert places(held) == [(1, 0), (1, 2)]


def test_the_trainer_is_given_the_same_epochs_again_and_the_loader_rests():
    loader = Loader()
    one = trainer(loader)
    held = hold_batches(one, 3)
    loaded = loader.loaded
    assert one.get_train_dataloader() is held
    assert (len(held), held.dataset, held.repeats, loader.ended) == (3, range(3), False, 1)
    assert places(held) == [(0, 0), (0, 1), (0, 2)]
    held.set_epoch(1)
    assert places(held) == [(1, 0), (1, 1)]
    assert loader.loaded == loaded


def test_what_a_trainer_takes_out_of_a_batch_is_there_the_next_time():
    held = hold_batches(trainer(Loader()), 2)
    next(iter(held)).pop("input_ids")
    assert places(held)[0] == (0, 0)


def test_batches_that_fill_the_memory_are_given_again(monkeypatch):
    monkeypatch.setattr(held_batches, "MOST_BYTES", 40)  # a batch has 16
    held = hold_batches(trainer(Loader()), 100)
    assert held.repeats
    held.set_epoch(1)
    assert places(held) == [(0, 0), (0, 1), (0, 2)]
