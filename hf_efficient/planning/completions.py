"""Trainings on completions of the model's own, without values: GRPO and on-policy distillation.

Simulated are the update on completions of full length, and the memory in which they are generated.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from datasets import Dataset
from trl import DistillationTrainer, GRPOTrainer

from hf_efficient.facts.environment import replaced
from hf_efficient.planning.arguments import stand_in
from hf_efficient.planning.simulated_trainer import HeadOfAGpu, SimulatedTrainer, divergence_kernels_of_a_gpu
from hf_efficient.planning.trainers import adapt_as_in_the_run, any_tokenizer
from hf_efficient.recipe.schema import Recipe

_EVALUATED = "evaluated"


def completion_trainer(recipe: Recipe, model: Any, args: Any, length: int, teacher: Any = None) -> SimulatedTrainer:
    """TRL's trainer for two steps on rows of ``length`` tokens, prompt and completion: GRPO's, or a ``teacher``'s."""
    kind: Any = _GroupSimulation if teacher is None else _DistillSimulation
    own: dict[str, Any] = {"teacher_model": teacher}
    # Of a long accumulation few micro-batches are simulated, and the completions of all are generated together.
    times = int(recipe.train.get("gradient_accumulation_steps", 1))
    if teacher is None:
        own, times = {"reward_funcs": [_no_reward] * max(1, len(recipe.rewards))}, args.steps_per_generation
    rows = 2 * args.per_device_train_batch_size * max(times, args.gradient_accumulation_steps)
    trainer: _CompletionSimulation = kind(
        length,
        times,
        **own,
        model=model,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "a"}] * rows),
        processing_class=any_tokenizer(),
        optimizers=(stand_in(recipe, model), None),
    )
    trainer.generates = not recipe.train.get("use_vllm")
    adapt_as_in_the_run(recipe, model)
    return trainer


def _no_reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


class _CompletionSimulation(HeadOfAGpu):
    generates = True
    """By transformers, in the memory of the training."""

    def __init__(self, length: int, times: int, **options: Any) -> None:
        self._length, self._times = length, times
        super().__init__(**options)

    def watch(self) -> None:
        self.data_collator = self._batch
        super().watch()

    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        return [{"prompt": "a", _EVALUATED: length}] * count

    def _batch(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """What ``_generate_and_score_completions`` gives a micro-batch, one prompt and one completion being shorter."""
        args: Any = self.args
        count, length = (len(rows), rows[0][_EVALUATED]) if _EVALUATED in rows[0] else (0, self._length)
        count = count or args.per_device_train_batch_size
        completion = args.max_completion_length
        batch: dict[str, Any] = {
            f"{name}_{part}": torch.ones(count, tokens, dtype=torch.long)
            for name, tokens in (("prompt", max(1, length - completion)), ("completion", completion))
            for part in ("ids", "mask")
        }
        batch["prompt_mask"][0, 0] = batch["completion_mask"][0, -1] = 0
        batch["num_items_in_batch"] = torch.tensor(count * completion)
        return batch

    def _prepare_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        if self.generates:
            phase, self.phase = self.phase, "generation"
            with nullcontext() if self.tensors is None else replaced(self.tensors, "on_operator", None):
                self._generate_blank(batch)
            self.phase = phase
        return batch

    @torch.no_grad()
    def _generate_blank(self, batch: dict[str, Any]) -> None:
        """A prefill of all prompts that are answered together, then their cache at its full length and a layer more,
        which is copied as it grows. Also logits in float32 with two copies, which sampling makes."""
        model: Any = self.model
        args: Any = self.args
        config, training = model.config.get_text_config(), model.training
        rows = len(batch["prompt_ids"]) * (self._times if training else 1)
        prompts = batch["prompt_ids"][:1].expand(rows, -1)
        weight = model.get_input_embeddings().weight
        model.eval()
        model(input_ids=prompts, logits_to_keep=1)
        model.train(training)
        length = prompts.shape[1] + args.max_completion_length
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (2, rows, config.num_key_value_heads, length, head)
        held = [weight.new_empty(shape) for _ in range(config.num_hidden_layers + 1)]
        held += [weight.new_empty((rows, config.vocab_size), dtype=torch.float32) for _ in range(3)]
        del held


class _GroupSimulation(_CompletionSimulation, GRPOTrainer):
    def _batch(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super()._batch(rows)
        count, completion = batch["completion_ids"].shape
        batch["advantages"] = torch.ones(count)
        if self.beta:
            batch["ref_per_token_logps"] = torch.zeros(count, completion)
        return batch


class _DistillSimulation(_CompletionSimulation, DistillationTrainer):
    def _kernels(self) -> AbstractContextManager[None]:
        return divergence_kernels_of_a_gpu(self.mark_logits)
