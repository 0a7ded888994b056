"""What trains the arms of this Python: TRL's ``SFTTrainer`` with the recipe's fields, and a loop by hand."""

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import torch
from accelerate.data_loader import SeedableRandomSampler
from accelerate.utils import send_to_device
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import Trainer, get_scheduler
from trl import SFTConfig, SFTTrainer

from hf_efficient.data.build import build_sft_data
from hf_efficient.launch.arguments import keep_to_one_device, settle, settle_choices, training_arguments
from hf_efficient.launch.machine import keep_freed_memory
from hf_efficient.model.adapter import add_adapter, lora_config
from hf_efficient.model.load import load_base, load_tokenizer
from hf_efficient.model.recipe_trainer import CHUNKED_NLL, fuse_head, head_obstacle
from hf_efficient.model.scored_head import scored_head, target_positions
from hf_efficient.model.work import has_fused_kernels
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.bench import Work
from hf_efficient.trials.meter import StepMeter
from hf_efficient.trials.run_figures import run_figures, token_counts

_OURS = ("loss_type", "chat_template_path", "eos_token", "pad_token", "train_sampling_strategy")
"""Fields of ``train:`` that TRL's arms leave as TRL has them; the tokenizer brings its template and tokens."""
_OPTIONS = ("use_liger_kernel", "padding_free", "packing_strategy")
"""Fields that make ``SFTTrainer`` faster, which the arm as it comes leaves out."""


def train_arm(recipe: Recipe, folder: Path, *, arm: str, work: dict[str, Any]) -> dict[str, Any]:
    """The work of a worker: one training of an arm on what was prepared. Returns the fields of ``ArmRun``."""
    if arm == "bare":
        return train_by_hand(recipe)
    return train_by_trl(recipe, msgspec.convert(work, Work), folder / "run", packed=arm == "trl_packed")


def train_by_trl(recipe: Recipe, work: Work, output_dir: Path, *, packed: bool) -> dict[str, Any]:
    """``SFTTrainer``: with packed rows, or padded, as it comes."""
    settled = training_arguments(recipe)
    left_out = _OURS if packed else (*_OURS, *_OPTIONS)
    options = {name: value for name, value in recipe.train.items() if name not in left_out}
    options |= {"output_dir": str(output_dir), "packing": packed, "completion_only_loss": False}
    options |= {"per_device_train_batch_size": work.packed_rows if packed else work.padded_rows}
    options |= {name: getattr(settled, name) for name in ("bf16", "use_cpu", "dataloader_pin_memory")}
    args = SFTConfig(**options)
    keep_to_one_device(args)
    meter = StepMeter()
    meter.install()
    with Path(work.rows).open(encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    trainer = SFTTrainer(
        model=load_base(_with_its_own_attention(recipe, packed=packed)),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=load_tokenizer(recipe.model, recipe.train),
        peft_config=None if recipe.adapter.method == "full" else lora_config(recipe.adapter),
        callbacks=[meter],
    )
    trainer.train()
    return meter.figures()


def _with_its_own_attention(recipe: Recipe, *, packed: bool) -> Recipe:
    """Transformers' attention that the recipe names or, for packed rows, means by ``auto``; ours is not TRL's."""
    settled = settle_choices(recipe, training_arguments(recipe))
    named = settled.model.attn_implementation
    if named == "documents" or (recipe.model.attn_implementation == "auto" and not packed):
        named = None
    return settled.model_copy(update={"model": settled.model.model_copy(update={"attn_implementation": named})})


def train_by_hand(recipe: Recipe) -> dict[str, Any]:
    """A loop over the batches of the recipe's trainer: its data, collator, layers and head; no Trainer, no records."""
    keep_freed_memory()
    settled, args = settle(recipe)
    data: Any = build_sft_data(settled, load_tokenizer(settled.model, settled.train), args)  # type: ignore[arg-type]
    model, chunked = _model(settled, args)
    weights = [one for one in model.parameters() if one.requires_grad]
    optimizer, schedule = _optimizer(weights, args)
    batches = _batches(data, args)
    seconds: list[float] = []
    counts: list[list[tuple[Any, int]]] = []
    losses: list[float] = []
    norms: list[float] = []
    ended = time.perf_counter()
    for _ in range(args.max_steps):
        held = [next(batches) for _ in range(args.gradient_accumulation_steps)]
        losses.append(_forward_and_backward(model, held, args, chunked=chunked))
        most = args.max_grad_norm or float("inf")
        norms.append(float(torch.nn.utils.clip_grad_norm_(weights, most, foreach=True)))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        counts.append([token_counts(batch) for batch in held])
        began, ended = ended, time.perf_counter()
        seconds.append(ended - began)
    return run_figures(seconds, counts, losses, norms)


def _model(recipe: Recipe, args: Any) -> tuple[Any, bool]:
    """The model as the recipe trains it, and whether its head and loss are chunked."""
    checkpointing = bool(args.gradient_checkpointing)
    model: Any = add_adapter(load_base(recipe), recipe.adapter, seed=args.seed, checkpointing=checkpointing)
    if recipe.adapter.method != "qlora":  # whose weights are where they belong
        model.to(args.device)
    model.train()
    model.config.use_cache = args.use_cache  # as Trainer sets it
    if checkpointing:
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
    chunked = args.loss_type == CHUNKED_NLL and head_obstacle(model) is None
    if chunked:
        fuse_head(model)
    return model, chunked


def _optimizer(weights: list[torch.nn.Parameter], args: Any) -> tuple[torch.optim.Optimizer, Any]:
    kind, settings = Trainer.get_optimizer_cls_and_kwargs(args)
    optimizer = kind(weights, weight_decay=args.weight_decay, **settings)
    warm_up, more = args.get_warmup_steps(args.max_steps), args.lr_scheduler_kwargs or {}
    return optimizer, get_scheduler(args.lr_scheduler_type, optimizer, warm_up, args.max_steps, more)


def _batches(data: Any, args: Any) -> Iterator[dict[str, Any]]:
    """Those of ``Trainer``, in its order."""
    seed = args.seed if args.data_seed is None else args.data_seed
    order, rows = SeedableRandomSampler(data.train, data_seed=seed), args.per_device_train_batch_size
    loader: Any = DataLoader(data.train, rows, sampler=order, collate_fn=data.collator)
    while True:
        for batch in loader:
            yield send_to_device(batch, args.device)


def _forward_and_backward(model: Any, batches: list[dict[str, Any]], args: Any, *, chunked: bool) -> float:
    """The mean loss over the target tokens of all micro-batches of a step; its gradients are left in the weights."""
    targets = [(batch["labels"][:, 1:] != -100).sum() for batch in batches]
    by_positions = chunked and not has_fused_kernels(args.device)
    fused = {"fused_lm_head": True} if chunked else {}
    total = 0.0
    for batch, own in zip(batches, targets, strict=True):
        pieces = scored_head(target_positions(batch["labels"])) if by_positions else nullcontext()
        with torch.autocast(args.device.type, torch.bfloat16, enabled=args.bf16), pieces:
            loss = model(**batch, **fused).loss * (own / sum(targets))
        loss.backward()
        total += float(loss.detach())
    return total
