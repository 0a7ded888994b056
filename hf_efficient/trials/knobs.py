"""What may be changed in a recipe, one thing at a time, and when that could help.

To add a knob, write a method of ``Here`` that returns changes by dotted key, and name it in ``facts/data/knobs.yaml``.
It returns None where it does not apply, is set already or could not matter. All keep the tokens of an optimizer step,
as near as whole rows allow. None touches what is learned: model, data, length, rate.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


Changes = dict[str, Any] | None


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
    """A recipe on this machine, what its latest trial measured, and the changes of each knob."""

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

    def cadence(self) -> Changes:
        """Evaluations and saves as often as their shares of the time allow, and still four times in a run."""
        if self.pause_share < EVALUATIONS_ALLOWED:
            return None
        train = self.settings.train
        wanted: dict[str, int] = {}
        pauses = [("eval", self.pauses.evaluation_seconds, EVALUATIONS_ALLOWED)]
        for kind, seconds, allowed in [*pauses, ("save", self.pauses.save_seconds, SAVES_ALLOWED)]:
            every = interval(self.settings, kind)
            if every is None or seconds <= allowed * every * self.step_seconds:
                continue
            rarer = math.ceil(seconds * (1 - allowed) / (allowed * self.step_seconds))
            if self.run.steps is not None:
                rarer = min(rarer, self.run.steps // _FEWEST_LOOKS)
            if rarer > every:
                wanted[kind] = rarer if rarer < 20 else math.ceil(rarer / 10) * 10
        if wanted and train("load_best_model_at_end"):
            wanted = dict.fromkeys(("eval", "save"), max(wanted.values()))
        return {f"train.{kind}_steps": every for kind, every in wanted.items()} or None

    def padding(self) -> Changes:
        multiple = self.settings.train("pad_to_multiple_of")
        useful = 1 if self.on_cpu else 8  # which a GPU's matrix units like
        pads = isinstance(multiple, int) and multiple > useful and self.run.padding_share >= _MUCH_PADDING
        return {"train.pad_to_multiple_of": None if self.on_cpu else useful} if pads else None

    def packing(self) -> Changes:
        """Rows of the full length, as many of them as hold the tokens of a step."""
        train = self.settings.train
        length = train("max_length")
        if train("packing") or train("padding_free") or length is None or self.run.row_tokens > _SPARSE * length:
            return None
        tokens = self.rows * self.accumulated * self.run.row_tokens
        packs = max(1, math.floor(tokens / length))
        packs += (packs + 1) * length / tokens < tokens / (packs * length)  # whichever is nearer as a ratio
        rows = max(1, min(packs, round(self.rows * self.run.row_tokens / length)))
        changes = {"train.packing": True, **self.batch(rows, max(1, round(packs / rows)))}
        if train("train_sampling_strategy") == "group_by_length":
            changes["train.train_sampling_strategy"] = None
        if train("pad_to_multiple_of"):
            changes["train.pad_to_multiple_of"] = None
        if self.settings.recipe.model.attn_implementation in (None, "sdpa"):
            changes["model.attn_implementation"] = "auto"
        return changes

    def padding_free(self) -> Changes:
        """The rows of a micro-batch one behind the other, which TRL does only where no length cuts them."""
        train = self.settings.train
        joined = train("packing") or train("padding_free") or train("max_length") is not None
        if joined or self.rows == 1 or self.run.padding_share < _MUCH_PADDING:
            return None
        kept = self.settings.recipe.model.attn_implementation not in (None, "sdpa")
        return {"train.padding_free": True, **({} if kept else {"model.attn_implementation": "auto"})}

    def precision(self) -> Changes:
        """Bfloat16 where the device is fast in it, and not where a CPU is faster in float32."""
        recipe = self.settings.recipe
        if self.on_cpu and not self.run.fast_bfloat16:
            return {"train.bf16": False} if mixed_precision(recipe) == "bf16" else None
        is_float32 = mixed_precision(recipe) == "no" and self.run.weights == "float32"
        applies = is_float32 and recipe.adapter.method != "qlora" and self.run.fast_bfloat16
        return {"train.bf16": True} if applies else None

    def weights(self) -> Changes:
        recipe = self.settings.recipe
        mixed = mixed_precision(recipe) == "bf16" and self.run.fast_bfloat16
        applies = mixed and recipe.adapter.method == "lora" and self.run.weights == "float32"
        return {"model.dtype": "bfloat16"} if applies else None

    def checkpointing(self) -> Changes:
        field, on, held = self._checkpointing()
        kept = {f"train.{field}_kwargs": None} if held else {}
        return {f"train.{field}": False, **kept} if on else None

    def _checkpointing(self) -> tuple[str, bool, dict[str, Any]]:
        field, on = activation_checkpointing(self.settings)
        held = self.settings.train(f"{field}_kwargs")
        return field, on, held if isinstance(held, dict) else {}

    def selective(self) -> Changes:
        """TRL's selective checkpointing, which knows the older name of the field alone."""
        field, on, held = self._checkpointing()
        applies = on and field.startswith("gradient") and not (held.get("selective") or held.get("use_reentrant"))
        return {f"train.{field}_kwargs": {**held, "selective": True}} if applies else None

    def recomputation(self) -> Changes:
        field, on, held = self._checkpointing()
        if on and held.get("selective"):
            return {f"train.{field}_kwargs": {**held, "selective": False}}
        return None if on else {f"train.{field}": True}

    def _on_a_gpu(self, field: str) -> Changes:
        return None if self.on_cpu or self.settings.train(field) else {f"train.{field}": True}

    def loss(self) -> Changes:
        chunks = self.settings.train("loss_type") == "nll" and fits_chunked_loss(self.settings)
        return {"train.loss_type": "auto"} if chunks else None

    def fused_lora(self) -> Changes:
        adapter = self.settings.recipe.adapter
        bits = 16 if adapter.quantization is None else adapter.quantization.bits
        fuses = adapter.method != "full" and adapter.fused is False and not adapter.dora and bits != 8
        return {"adapter.fused": "auto"} if fuses and self.on_cpu else None

    def attention(self) -> Changes:
        named = self.settings.recipe.model.attn_implementation
        if named == "eager":
            return {"model.attn_implementation": "sdpa"}
        joins = self.settings.train("packing") or self.settings.train("padding_free")
        return {"model.attn_implementation": "auto"} if named in (None, "sdpa") and joins else None

    def grouping(self) -> Changes:
        train = self.settings.train
        grouped = train("packing") or train("train_sampling_strategy") == "group_by_length"
        pads = self.rows > 1 and self.run.padding_share >= _MUCH_PADDING
        return {"train.train_sampling_strategy": "group_by_length"} if pads and not grouped else None

    def micro_batch(self) -> Changes:
        """As large as the diagnosis says at the same global batch, else twice as large."""
        for one in self.run.predictions:
            rows, accumulated = one.changes.get(ROWS, 0), one.changes.get(ACCUMULATION, 1)
            if rows > self.rows and rows * accumulated == self.rows * self.accumulated:
                return self.batch(rows, accumulated)
        return self.batch(2 * self.rows, self.accumulated // 2) if self.accumulated % 2 == 0 else None

    def smaller_micro_batch(self) -> Changes:
        return self.batch(self.rows // 2, 2 * self.accumulated) if self.rows % 2 == 0 else None

    def workers(self) -> Changes:
        train = self.settings.train
        if self.run.data_wait_share < _MATTERS or train("dataloader_persistent_workers"):
            return None
        own = {} if train("dataloader_num_workers") else {"train.dataloader_num_workers": _WORKERS}
        return {**own, "train.dataloader_persistent_workers": True}

    def prefetch(self) -> Changes:
        train = self.settings.train
        waits = train("dataloader_num_workers") and self.run.data_wait_share >= _MATTERS
        return {"train.dataloader_prefetch_factor": 2 * (train("dataloader_prefetch_factor") or 2)} if waits else None

    def threads(self) -> Changes:
        threads = self.settings.recipe.distributed.cpu_threads or thread_count()
        return {"distributed.cpu_threads": threads // 2} if self.on_cpu and threads > 1 else None

    def affinity(self) -> Changes:
        """Where the host has several memory nodes: on one, all cores are beside the GPU."""
        several = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) > 1
        is_off = not self.settings.recipe.distributed.cpu_affinity
        return {"distributed.cpu_affinity": True} if several and is_off and not self.on_cpu else None

    def _sharding(self, others: Mapping[str, str]) -> Changes:
        other = others.get(strategy_of(self.settings.recipe, self.run.processes))
        return {"distributed.strategy": other} if other else None

    def logging(self) -> Changes:
        train = self.settings.train
        every = train("logging_steps") if str(train("logging_strategy")) == "steps" else None
        often = every is not None and 1 <= every < _RARE_LOGS and self.run.logging_share >= _MATTERS
        return {"train.logging_steps": _RARE_LOGS} if often else None

    def optimizer(self) -> Changes:
        return {"train.optim": "adamw_torch_fused"} if self.settings.train("optim") == "adamw_torch" else None

    def _compile(self, key: str) -> Changes:
        is_on = self.settings.train("torch_compile") or self.settings.recipe.model.compile_blocks
        return None if is_on or self.on_cpu else {key: True}

    def pinned_memory(self) -> Changes:
        return self._on_a_gpu("dataloader_pin_memory")

    def offload(self) -> Changes:
        return self._on_a_gpu("activation_offloading")

    def compile_blocks(self) -> Changes:
        return self._compile("model.compile_blocks")

    def compile(self) -> Changes:
        return self._compile("train.torch_compile")

    def less_sharding(self) -> Changes:
        return self._sharding({"zero3": "zero2", "zero2": "ddp", "zero1": "ddp", "fsdp2": "ddp"})

    def more_sharding(self) -> Changes:
        return self._sharding({"ddp": "fsdp2", "zero1": "zero2", "zero2": "zero3"})


@dataclass(frozen=True)
class Knob:
    """``rules``: of the diagnosis, whose finding ranks it. ``saves``: time, memory or both. ``computed``: its gain
    follows from what is measured, without a trial. ``time_left``: the share of a step's time that should be left.
    ``promised``: what others claim, with the source; ``idle``: why it was not tried, where it was not."""

    name: str
    propose: Callable[[Here], Changes]
    time_left: Callable[[Here], float | None]
    what: str
    costs: str
    rules: Sequence[str] = ()
    saves: Sequence[str] = ("time",)
    computed: bool = False
    promised: str = ""
    idle: str = "it is set already, or not for this recipe"


def _without_padding(here: Here) -> float:
    return 1 - here.run.padding_share * here.run.model_share


_TIME_LEFT: dict[str, Callable[[Here], float | None]] = {
    "padding": lambda here: None if here.rows > 1 else _without_padding(here),
    "packing": _without_padding,
}
KNOBS: Final = tuple(
    Knob(name, getattr(Here, name), _TIME_LEFT.get(name, lambda here: None), **about)
    for name, about in key_table("knobs").items()
)
"""In the order in which they are tried where the diagnosis ranks none."""
