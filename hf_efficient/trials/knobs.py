"""What may be changed in a recipe, one thing at a time, and when that could help.

To add a knob, write a function that takes ``Here`` and returns changes by dotted key, and name it in ``KNOBS``. It
returns None where it does not apply, is set already or could not matter. All keep the tokens of an optimizer step, as
near as whole rows allow. None touches what is learned: model, data, length, rate.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from hf_efficient.facts.environment import thread_count
from hf_efficient.facts.tables import key_table
from hf_efficient.launch.command import strategy_of
from hf_efficient.planning.changes import activation_checkpointing
from hf_efficient.recipe.rules.distributed import ACCUMULATION, GLOBAL_BATCH, names_accumulation
from hf_efficient.recipe.rules.settings import Settings
from hf_efficient.recipe.rules.training import fits_chunked_loss
from hf_efficient.recipe.schema import mixed_precision
from hf_efficient.records.tuning import TrialRun

ROWS: Final = "train.per_device_train_batch_size"
EVALUATIONS_ALLOWED, SAVES_ALLOWED = 0.05, 0.03
"""Shares of the time, as the diagnosis allows them (``diagnosis/rules/pauses.py``)."""

_MUCH_PADDING = 0.05
_SPARSE = 0.6
_MATTERS = 0.01
_FEWEST_LOOKS = 4
_RARE_LOGS = 10
_WORKERS = 2


@dataclass(frozen=True)
class Pauses:
    """Seconds of one evaluation and of one save; 0 where the recipe has none."""

    evaluation_seconds: float = 0.0
    save_seconds: float = 0.0

    def per_step(self, settings: Settings) -> float:
        """Of an optimizer step, on average."""
        found = 0.0
        for kind, seconds in (("eval", self.evaluation_seconds), ("save", self.save_seconds)):
            every = interval(settings, kind)
            found += seconds / every if every else 0.0
        return found


def interval(settings: Settings, kind: str) -> int | None:
    """Steps from one evaluation (``eval``) or save to the next; None where no number of steps says when."""
    if str(settings.train(f"{kind}_strategy")) != "steps" or (kind == "eval" and not settings.has_evaluation_data):
        return None
    every = settings.train(f"{kind}_steps") or settings.train("logging_steps")
    return int(every) if every and every != "auto" and every >= 1 else None


@dataclass(frozen=True)
class Here:
    """A recipe on this machine, and what its latest trial measured."""

    settings: Settings
    run: TrialRun
    pauses: Pauses

    @property
    def rows(self) -> int:
        return int(self.settings.train("per_device_train_batch_size"))

    @property
    def accumulated(self) -> int:
        return int(self.settings.train("gradient_accumulation_steps"))

    @property
    def on_cpu(self) -> bool:
        return self.run.device == "cpu"

    @property
    def step_seconds(self) -> float:
        return statistics.fmean(self.run.step_seconds)

    @property
    def pause_share(self) -> float:
        pause = self.pauses.per_step(self.settings)
        return pause / (pause + self.step_seconds)

    def batch(self, rows: int, accumulated: int) -> dict[str, Any]:
        """So many rows in a micro-batch, and so many of these in a step; a named global batch follows."""
        recipe = self.settings.recipe
        named = recipe.distributed.global_batch_size is not None
        follows = named and not names_accumulation(recipe)
        changes = {ROWS: rows} | ({} if follows else {ACCUMULATION: accumulated})
        if named and rows * accumulated != self.rows * self.accumulated:
            changes[GLOBAL_BATCH] = rows * accumulated * self.run.processes
        return changes


@dataclass(frozen=True)
class Knob:
    """``rules``: of the diagnosis, whose finding ranks it. ``saves``: time, memory or both. ``computed``: its gain
    follows from what is measured, without a trial. ``time_left``: the share of a step's time that should be left.
    ``promised``: what others claim, with the source; ``idle``: why it was not tried, where it was not."""

    name: str
    propose: Callable[[Here], dict[str, Any] | None]
    time_left: Callable[[Here], float | None]
    what: str
    costs: str
    rules: Sequence[str] = ()
    saves: Sequence[str] = ("time",)
    computed: bool = False
    promised: str = ""
    idle: str = "it is set already, or not for this recipe"


def _cadence(here: Here) -> dict[str, Any] | None:
    """Evaluations and saves as often as their shares of the time allow, and still four times in a run."""
    if here.pause_share < EVALUATIONS_ALLOWED:
        return None
    train = here.settings.train
    wanted: dict[str, int] = {}
    pauses = [("eval", here.pauses.evaluation_seconds, EVALUATIONS_ALLOWED)]
    for kind, seconds, allowed in [*pauses, ("save", here.pauses.save_seconds, SAVES_ALLOWED)]:
        every = interval(here.settings, kind)
        if every is None or seconds <= allowed * every * here.step_seconds:
            continue
        rarer = math.ceil(seconds * (1 - allowed) / (allowed * here.step_seconds))
        if here.run.steps is not None:
            rarer = min(rarer, here.run.steps // _FEWEST_LOOKS)
        if rarer > every:
            wanted[kind] = rarer if rarer < 20 else math.ceil(rarer / 10) * 10
    if wanted and train("load_best_model_at_end"):
        wanted = dict.fromkeys(("eval", "save"), max(wanted.values()))
    return {f"train.{kind}_steps": every for kind, every in wanted.items()} or None


def _no_multiple(here: Here) -> dict[str, Any] | None:
    multiple = here.settings.train("pad_to_multiple_of")
    useful = 1 if here.on_cpu else 8  # which a GPU's matrix units like
    pads = isinstance(multiple, int) and multiple > useful and here.run.padding_share >= _MUCH_PADDING
    return {"train.pad_to_multiple_of": None if here.on_cpu else useful} if pads else None


def _pack(here: Here) -> dict[str, Any] | None:
    """Rows of the full length, as many of them as hold the tokens of a step."""
    train = here.settings.train
    length = train("max_length")
    if train("packing") or train("padding_free") or length is None or here.run.row_tokens > _SPARSE * length:
        return None
    tokens = here.rows * here.accumulated * here.run.row_tokens
    packs = max(1, math.floor(tokens / length))
    packs += (packs + 1) * length / tokens < tokens / (packs * length)  # whichever is nearer as a ratio
    rows = max(1, min(packs, round(here.rows * here.run.row_tokens / length)))
    changes = {"train.packing": True, **here.batch(rows, max(1, round(packs / rows)))}
    if train("train_sampling_strategy") == "group_by_length":
        changes["train.train_sampling_strategy"] = None
    if train("pad_to_multiple_of"):
        changes["train.pad_to_multiple_of"] = None
    if here.settings.recipe.model.attn_implementation in (None, "sdpa"):
        changes["model.attn_implementation"] = "auto"
    return changes


def _padding_free(here: Here) -> dict[str, Any] | None:
    """The rows of a micro-batch one behind the other, which TRL does only where no length cuts them."""
    train = here.settings.train
    joined = train("packing") or train("padding_free") or train("max_length") is not None
    if joined or here.rows == 1 or here.run.padding_share < _MUCH_PADDING:
        return None
    kept = here.settings.recipe.model.attn_implementation not in (None, "sdpa")
    return {"train.padding_free": True, **({} if kept else {"model.attn_implementation": "auto"})}


def _precision(here: Here) -> dict[str, Any] | None:
    """Bfloat16 where the device is fast in it, and not where a CPU emulates it."""
    recipe = here.settings.recipe
    if here.on_cpu and not here.run.fast_bfloat16:
        return {"train.bf16": False} if mixed_precision(recipe) == "bf16" else None
    is_float32 = mixed_precision(recipe) == "no" and here.run.weights == "float32"
    applies = is_float32 and recipe.adapter.method != "qlora" and here.run.fast_bfloat16
    return {"train.bf16": True} if applies else None


def _frozen_bfloat16(here: Here) -> dict[str, Any] | None:
    recipe = here.settings.recipe
    mixed = mixed_precision(recipe) == "bf16" and here.run.fast_bfloat16
    applies = mixed and recipe.adapter.method == "lora" and here.run.weights == "float32"
    return {"model.dtype": "bfloat16"} if applies else None


def _store_activations(here: Here) -> dict[str, Any] | None:
    field, on = activation_checkpointing(here.settings)
    kept = {f"train.{field}_kwargs": None} if _checkpointing_options(here, field) else {}
    return {f"train.{field}": False, **kept} if on else None


def _checkpointing_options(here: Here, field: str) -> dict[str, Any]:
    found = here.settings.train(f"{field}_kwargs")
    return found if isinstance(found, dict) else {}


def _store_attention(here: Here) -> dict[str, Any] | None:
    """TRL's selective checkpointing, which knows the older name of the field alone."""
    field, on = activation_checkpointing(here.settings)
    held = _checkpointing_options(here, field)
    applies = on and field.startswith("gradient") and not (held.get("selective") or held.get("use_reentrant"))
    return {f"train.{field}_kwargs": {**held, "selective": True}} if applies else None


def _checkpoint_activations(here: Here) -> dict[str, Any] | None:
    field, on = activation_checkpointing(here.settings)
    held = _checkpointing_options(here, field)
    if on and held.get("selective"):
        return {f"train.{field}_kwargs": {**held, "selective": False}}
    return None if on else {f"train.{field}": True}


def _offload_activations(here: Here) -> dict[str, Any] | None:
    is_off = not here.settings.train("activation_offloading")
    return {"train.activation_offloading": True} if is_off and not here.on_cpu else None


def _loss_on_targets(here: Here) -> dict[str, Any] | None:
    chunks = here.settings.train("loss_type") == "nll" and fits_chunked_loss(here.settings)
    return {"train.loss_type": "auto"} if chunks else None


def _fused_lora(here: Here) -> dict[str, Any] | None:
    adapter = here.settings.recipe.adapter
    bits = 16 if adapter.quantization is None else adapter.quantization.bits
    fuses = adapter.method != "full" and adapter.fused is False and not adapter.dora and bits != 8
    return {"adapter.fused": "auto"} if fuses and here.on_cpu else None


def _attention(here: Here) -> dict[str, Any] | None:
    named = here.settings.recipe.model.attn_implementation
    if named == "eager":
        return {"model.attn_implementation": "sdpa"}
    joins = here.settings.train("packing") or here.settings.train("padding_free")
    return {"model.attn_implementation": "auto"} if named in (None, "sdpa") and joins else None


def _group_by_length(here: Here) -> dict[str, Any] | None:
    train = here.settings.train
    grouped = train("packing") or train("train_sampling_strategy") == "group_by_length"
    pads = here.rows > 1 and here.run.padding_share >= _MUCH_PADDING
    return {"train.train_sampling_strategy": "group_by_length"} if pads and not grouped else None


def _larger_micro_batch(here: Here) -> dict[str, Any] | None:
    """As large as the diagnosis says at the same global batch, else twice as large."""
    for one in here.run.predictions:
        rows, accumulated = one.changes.get(ROWS, 0), one.changes.get(ACCUMULATION, 1)
        if rows > here.rows and rows * accumulated == here.rows * here.accumulated:
            return here.batch(rows, accumulated)
    return here.batch(2 * here.rows, here.accumulated // 2) if here.accumulated % 2 == 0 else None


def _smaller_micro_batch(here: Here) -> dict[str, Any] | None:
    return here.batch(here.rows // 2, 2 * here.accumulated) if here.rows % 2 == 0 else None


def _workers(here: Here) -> dict[str, Any] | None:
    train = here.settings.train
    if here.run.data_wait_share < _MATTERS or train("dataloader_persistent_workers"):
        return None
    own = {} if train("dataloader_num_workers") else {"train.dataloader_num_workers": _WORKERS}
    return {**own, "train.dataloader_persistent_workers": True}


def _prefetch(here: Here) -> dict[str, Any] | None:
    train = here.settings.train
    waits = train("dataloader_num_workers") and here.run.data_wait_share >= _MATTERS
    return {"train.dataloader_prefetch_factor": 2 * (train("dataloader_prefetch_factor") or 2)} if waits else None


def _pinned_memory(here: Here) -> dict[str, Any] | None:
    is_off = here.settings.train("dataloader_pin_memory") is False
    return {"train.dataloader_pin_memory": True} if is_off and not here.on_cpu else None


def _fewer_threads(here: Here) -> dict[str, Any] | None:
    threads = here.settings.recipe.distributed.cpu_threads or thread_count()
    return {"distributed.cpu_threads": threads // 2} if here.on_cpu and threads > 1 else None


def _affinity(here: Here) -> dict[str, Any] | None:
    """Where the host has several memory nodes: on one, all cores are beside the GPU."""
    several = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) > 1
    is_off = not here.settings.recipe.distributed.cpu_affinity
    return {"distributed.cpu_affinity": True} if several and is_off and not here.on_cpu else None


def _sharding(here: Here, others: Mapping[str, str]) -> dict[str, Any] | None:
    other = others.get(strategy_of(here.settings.recipe, here.run.processes))
    return {"distributed.strategy": other} if other else None


def _rarer_logs(here: Here) -> dict[str, Any] | None:
    train = here.settings.train
    every = train("logging_steps") if str(train("logging_strategy")) == "steps" else None
    often = every is not None and 1 <= every < _RARE_LOGS and here.run.logging_share >= _MATTERS
    return {"train.logging_steps": _RARE_LOGS} if often else None


def _fused_optimizer(here: Here) -> dict[str, Any] | None:
    return {"train.optim": "adamw_torch_fused"} if here.settings.train("optim") == "adamw_torch" else None


def _compile(here: Here, key: str) -> dict[str, Any] | None:
    is_on = here.settings.train("torch_compile") or here.settings.recipe.model.compile_blocks
    return None if is_on or here.on_cpu else {key: True}


def _without_padding(here: Here) -> float:
    return 1 - here.run.padding_share * here.run.model_share


_PROPOSERS: dict[str, Callable[[Here], dict[str, Any] | None]] = {
    "cadence": _cadence, "padding": _no_multiple, "packing": _pack, "padding_free": _padding_free,
    "precision": _precision, "checkpointing": _store_activations, "recomputation": _checkpoint_activations,
    "loss": _loss_on_targets, "fused_lora": _fused_lora, "weights": _frozen_bfloat16, "attention": _attention,
    "grouping": _group_by_length, "micro_batch": _larger_micro_batch, "smaller_micro_batch": _smaller_micro_batch,
    "workers": _workers, "prefetch": _prefetch, "pinned_memory": _pinned_memory, "logging": _rarer_logs,
    "offload": _offload_activations, "optimizer": _fused_optimizer, "threads": _fewer_threads, "affinity": _affinity,
    "selective": _store_attention, "compile_blocks": partial(_compile, key="model.compile_blocks"),
    "compile": partial(_compile, key="train.torch_compile"),
    "less_sharding": partial(_sharding, others={"zero3": "zero2", "zero2": "ddp", "zero1": "ddp", "fsdp2": "ddp"}),
    "more_sharding": partial(_sharding, others={"ddp": "fsdp2", "zero1": "zero2", "zero2": "zero3"}),
}  # fmt: skip
"""By the names in ``facts/data/knobs.yaml``, which has their order and says the rest of each."""
_TIME_LEFT: dict[str, Callable[[Here], float | None]] = {
    "padding": lambda here: None if here.rows > 1 else _without_padding(here),
    "packing": _without_padding,
}
KNOBS: Final = tuple(
    Knob(name, _PROPOSERS[name], _TIME_LEFT.get(name, lambda here: None), **about)
    for name, about in key_table("knobs").items()
)
"""In the order in which they are tried where the diagnosis ranks none."""
