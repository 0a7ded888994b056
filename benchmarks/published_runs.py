"""How near is a plan to the trainings that others have published with all their settings?

    python benchmarks/published_runs.py TABLE.csv [--only WORDS] [--json FILE]

A row of the table is a training on NVIDIA A100 80 GB: model, method, kernels, GPUs, micro-batch, and its peak of
allocated bytes, its tokens per second and GPU, or that it ran out of memory. Every fourth row is kept apart: no change
of the plan was made for its sake. Both parts are printed.
"""

import argparse
import csv
import datetime
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from shared import write_result

from hf_efficient.facts.accelerators import accelerator
from hf_efficient.facts.libraries import quieten_libraries, replaced
from hf_efficient.planning import blank_model as blank_model_module
from hf_efficient.planning.gpu import demand_of, planned_gpu
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.ranks.rank import spread
from hf_efficient.planning.ranks.shares import sharding_of
from hf_efficient.planning.simulation import Simulation, planned_memory, simulate
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe

GPU = "A100 80GB SXM"
EVERY = 4
"""Of so many rows in the order of the table the last is kept apart."""

_SAME_SHAPE = {
    "NousResearch/Llama-2-70b-hf": "meta-llama/Llama-2-70b-hf",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistralai/Mixtral-8x7B-v0.1",
}
_FUSED = ("train.use_liger_kernel=true", "adapter.fused=true")
_LOSS = "{rms_norm: true, rope: true, swiglu: false, cross_entropy: %s, fused_linear_cross_entropy: %s}"
KERNELS: Mapping[str, Sequence[str]] = {
    "plain": (),
    "no-kbit-casts": (),
    "trl-kbit-casts": (),
    "fused": (*_FUSED, "train.liger_kernel_config=" + _LOSS % ("true", "false")),
    "fused+liger-flce": (*_FUSED, "train.liger_kernel_config=" + _LOSS % ("false", "true")),
}
"""Overrides of the recipe, by the table's word for what it ran with."""
_CASTS = "trl-kbit-casts"


@dataclass(frozen=True)
class PublishedRun:
    """A row. ``peak_bytes``, of rank 0, and ``tokens_per_second``, of a GPU, are None where it ran out of memory."""

    source: str
    model: str
    method: str
    kernels: str
    gpus: int
    batch: int
    seq: int
    autocast: bool
    peak_bytes: int | None
    tokens_per_second: float | None
    ran: bool
    apart: bool = False

    @property
    def name(self) -> str:
        model, gpus = self.model.rpartition("/")[2], "" if self.gpus == 1 else f"{self.gpus} GPUs, "
        mixed = ", autocast" if self.autocast else ""
        return f"{model} {self.method}, {self.kernels}, {gpus}{self.batch} x {self.seq:,}{mixed}"

    @property
    def simulated_as(self) -> tuple[Any, ...]:
        """Rows with the same one differ in their number of ranks alone."""
        several = self.gpus > 1
        kernels = self.kernels if self.kernels == _CASTS else KERNELS[self.kernels]
        return self.model, self.method, kernels, self.source, self.batch, self.seq, self.autocast, several


@dataclass(frozen=True)
class Held:
    """A row against its plan, whose tokens per second are of a GPU; ``is_alike``: all that it ran with is planned."""

    run: PublishedRun
    fits: bool
    planned_peak_bytes: int
    planned_needed_bytes: int
    planned_tokens_per_second: float | None
    differs: str
    is_alike: bool = True

    @property
    def peak_error(self) -> float | None:
        return None if self.run.peak_bytes is None else self.planned_peak_bytes / self.run.peak_bytes - 1

    @property
    def speed_error(self) -> float | None:
        planned, published = self.planned_tokens_per_second, self.run.tokens_per_second
        return None if planned is None or published is None else planned / published - 1


def read_runs(path: Path) -> list[PublishedRun]:
    with path.open(encoding="utf-8", newline="") as table:
        return [_run(row, place) for place, row in enumerate(csv.DictReader(table))]


def _run(row: Mapping[str, str], place: int) -> PublishedRun:
    ran = row["ran"] == "1"
    return PublishedRun(
        source=row["source"],
        model=_SAME_SHAPE.get(row["model"], row["model"]),
        method=row["method"],
        kernels=row["kernels"],
        gpus=int(row["gpus"]),
        batch=int(row["batch"]),
        seq=int(row["seq"]),
        autocast=row["bf16_autocast"] == "1",
        peak_bytes=int(row["peak_allocated_bytes"]) if ran else None,
        tokens_per_second=float(row["tokens_per_second_per_gpu"]) if ran else None,
        ran=ran,
        apart=place % EVERY == EVERY - 1,
    )


def recipe_of(run: PublishedRun) -> Recipe:
    """Rows of documents cut to one length, each attended to as a whole: what ``packing`` was in their TRL."""
    adapted = ("adapter.r=16", "adapter.alpha=16", "adapter.dropout=0.1")
    return load_recipe(
        f"llama3.1-8b/{'qlora' if run.method == 'qlora' else 'lora'}",
        [
            f"model.id={run.model}",
            "model.dtype=bfloat16",
            "model.attn_implementation=flash_attention_2",
            f"adapter.method={run.method}",
            *(() if run.method == "full" else (*adapted, "adapter.target_modules=[q_proj, k_proj, v_proj, o_proj]")),
            "data.eval_fraction=null",
            "evaluate.at_end=false",
            "evaluate.metrics=[]",
            "train.eval_strategy=no",
            "train.packing=false",
            f"train.max_length={run.seq}",
            f"train.per_device_train_batch_size={run.batch}",
            "train.gradient_accumulation_steps=1",
            "train.gradient_checkpointing=true",
            "train.optim=adamw_torch",
            "train.weight_decay=0.01",
            "train.loss_type=nll",
            f"train.bf16={str(run.autocast).lower()}",
            f"distributed.processes={run.gpus}",
            f"distributed.strategy={'none' if run.gpus == 1 else 'fsdp2'}",
            *_kernels(run),
        ],
    )


def _kernels(run: PublishedRun) -> Iterator[str]:
    """Under FSDP2 LoRA layers are PEFT's own: fused ones read whole weights. Adapters of Mistral on several GPUs had no
    fused loss: between micro-batches of 4, 8 and 16 rows their peak grows by 16 bytes a logit, on one GPU by 8."""
    adapted = run.method != "full"
    for one in KERNELS[run.kernels]:
        if adapted and run.gpus > 1 and "Mistral-7B" in run.model and run.source == _LIGER_TABLE:
            one = one.replace("entropy: true", "entropy: false")
        if (adapted and run.gpus == 1) or not one.startswith("adapter."):
            yield one


def held_against(runs: Iterable[PublishedRun]) -> Iterator[Held]:
    """The plans, one simulation for rows that differ in their number of ranks alone."""
    ordered = sorted(runs, key=lambda run: repr(run.simulated_as))
    for _, same in groupby(ordered, key=lambda run: run.simulated_as):
        group = list(same)
        first = group[0]
        several, casts = first.gpus > 1, first.kernels == _CASTS
        whole = _simulated(recipe_of(first), first.source, several=several, mixed=first.autocast, casts=casts)
        for run in group:
            yield _held(run, recipe_of(run), whole)


def _simulated(recipe: Recipe, source: str, *, several: bool, mixed: bool, casts: bool = False) -> Simulation:
    with loss_of(source), casts_for_training() if casts else nullcontext():
        return simulate(recipe, model_config(recipe.model), computes_in=torch.bfloat16 if several and mixed else None)


@contextmanager
def casts_for_training() -> Iterator[None]:
    """Within, what is not quantized is cast to float32 (``peft.prepare_model_for_kbit_training``)."""
    plain: Any = blank_model_module.add_adapter

    def cast(model: Any, *args: Any, **more: Any) -> Any:
        for module in model.modules():
            if type(module).__name__ != "Linear4bit":
                for name, weight in list(module._parameters.items()):
                    if weight is not None and weight.dim() < 3:  # experts are quantized there
                        module._parameters[name] = torch.nn.Parameter(weight.float(), requires_grad=False)
        return plain(model, *args, **more)

    with replaced(blank_model_module, "add_adapter", cast):
        yield


@contextmanager
def loss_of(source: str) -> Iterator[None]:
    """Within, the loss takes what it took in the transformers of a row: 4.48 copies the shifted logits in float32, 4.45
    does so as well, and its model already returns them in float32. Today's shifts the labels."""
    from transformers.loss import loss_utils

    def shifted(logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, **more: Any) -> torch.Tensor:
        logits = logits.float()
        before = logits[..., :-1, :].contiguous().view(-1, vocab_size)
        more.pop("shift_labels", None)
        return loss_utils.fixed_cross_entropy(before, labels[..., 1:].contiguous().view(-1), **more)

    known: Any = loss_utils.LOSS_MAPPING
    today = known["ForCausalLM"]
    known["ForCausalLM"] = shifted
    linear = torch.nn.Linear.forward

    def in_float32(head: Any, hidden: torch.Tensor) -> torch.Tensor:
        out = linear(head, hidden)
        return out.float() if head.out_features >= _FEWEST_WORDS else out

    try:
        kind: Any = torch.nn.Linear
        with replaced(kind, "forward", in_float32) if source == _LIGER_TABLE else nullcontext():
            yield
    finally:
        known["ForCausalLM"] = today


_LIGER_TABLE = "a100_80gb_liger"
"""The part of the table that ran with transformers 4.45."""
_FEWEST_WORDS = 32_000
"""Of a vocabulary: no other layer of these models is as wide."""


def _held(run: PublishedRun, recipe: Recipe, whole: Simulation) -> Held:
    simulation = spread(whole, sharding_of(recipe), mixed=run.autocast)
    gpu, memory = planned_gpu(demand_of(recipe, simulation), accelerator(GPU)), planned_memory(simulation)
    speed = None if gpu.tokens_per_second is None else gpu.tokens_per_second / run.gpus
    # What cuBLAS takes is part of what torch counts; it is not known where the plan does not fit.
    peak = gpu.allocated_bytes or memory.peak_allocated_bytes
    lacking = _lacking(run)
    differs = [*lacking, *(["FSDP1 there, FSDP2 here"] if run.gpus > 1 else [])]
    return Held(run, gpu.fits, peak, gpu.needed_bytes, speed, "; ".join(differs), not lacking)


def _lacking(run: PublishedRun) -> list[str]:
    """What it ran with and the plan has not."""
    found: list[str] = []
    if "Mixtral" in run.model and run.method == "qlora":
        found.append("experts are one tensor in today's transformers, which bitsandbytes leaves in 16 bits")
    return found


def spread_of(errors: Sequence[float]) -> dict[str, float]:
    """Of relative errors, by size: the median, the 90th percentile, the worst; and the median with its sign."""
    sizes = sorted(map(abs, errors))
    ninth = sizes[min(len(sizes) - 1, round(0.9 * (len(sizes) - 1)))]
    return {
        "rows": len(sizes),
        "median": statistics.median(sizes),
        "p90": ninth,
        "worst": sizes[-1],
        "bias": statistics.median(errors),
    }


def summary(held: Sequence[Held]) -> dict[str, Any]:
    peaks = [one.peak_error for one in held if one.peak_error is not None]
    speeds = [one.speed_error for one in held if one.speed_error is not None]
    ran, failed = [one for one in held if one.run.ran], [one for one in held if not one.run.ran]
    return {
        "peak": spread_of(peaks) if peaks else None,
        "tokens_per_second": spread_of(speeds) if speeds else None,
        "ran": len(ran),
        "ran_and_fits": sum(one.fits for one in ran),
        "out_of_memory": len(failed),
        "out_of_memory_and_does_not_fit": sum(not one.fits for one in failed),
    }


console = Console()


def main() -> None:
    """Plan all rows, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="the CSV")
    parser.add_argument("--only", default="", metavar="WORDS", help="rows whose name has these words")
    parser.add_argument("--open", action="store_true", help="without the rows that are kept apart")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row")
    options = parser.parse_args()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    runs = [run for run in read_runs(options.table) if options.only in run.name and not (options.open and run.apart)]
    held = []
    for one in held_against(runs):
        held.append(one)
        console.print(f"{len(held)} of {len(runs)}: {one.run.name}", highlight=False)
    parts = {"open": [one for one in held if not one.run.apart], "apart": [one for one in held if one.run.apart]}
    for name, part in parts.items():
        if part:
            _print(name, part)
    if options.json is not None:
        rows = [{**asdict(one), "peak_error": one.peak_error, "speed_error": one.speed_error} for one in held]
        summaries = {name: summary(part) for name, part in parts.items() if part}
        write_result(options.json, "published_runs", started, {"gpu": GPU, "summary": summaries, "rows": rows})


def _print(name: str, held: Sequence[Held]) -> None:
    found = summary(held)
    console.print(f"\n{name}: {len(held)} rows", style="bold")
    for figure in ("peak", "tokens_per_second"):
        errors = found[figure]
        if errors is not None:
            shares = ", ".join(f"{key} {errors[key]:.1%}" for key in ("median", "p90", "worst", "bias"))
            console.print(f"{figure}: {shares} of {errors['rows']} rows", highlight=False)
    console.print(
        f"of {found['ran']} that ran {found['ran_and_fits']} fit as planned; of {found['out_of_memory']} that ran out "
        f"of memory {found['out_of_memory_and_does_not_fit']} do not",
        highlight=False,
    )
    table = Table("worst peaks", "published", "planned", "error", "tokens/s", "planned", "error", "differs", box=None)
    worst = sorted((one for one in held if one.peak_error is not None), key=lambda one: -abs(one.peak_error or 0))
    for one in worst[:10]:
        run, speed, error = one.run, one.planned_tokens_per_second, one.speed_error
        table.add_row(
            run.name,
            f"{(run.peak_bytes or 0) / 2**30:.2f}",
            f"{one.planned_peak_bytes / 2**30:.2f}",
            f"{one.peak_error:+.1%}",
            f"{run.tokens_per_second:,.0f}",
            "" if speed is None else f"{speed:,.0f}",
            "" if error is None else f"{error:+.0%}",
            one.differs,
        )
    console.print(table)
    for one in held:
        if one.run.ran != one.fits:
            what = "ran, and is planned not to fit" if one.run.ran else "ran out of memory, and is planned to fit"
            console.print(f"{one.run.name}: {what} ({one.planned_needed_bytes / 2**30:.1f} GiB)", highlight=False)


if __name__ == "__main__":
    main()
