"""How near is a plan to the trainings that others have published with all their settings?

    python benchmarks/published_runs.py TABLE.csv [--only WORDS] [--json FILE] [--simulations FOLDER]

A row of the table is a training on NVIDIA A100 80 GB: model, method, kernels, GPUs, micro-batch, and its peak of
allocated bytes, its tokens per second and GPU, or that it ran out of memory. Every fourth row is kept apart: no change
of the plan was made for its sake. Both parts are printed. The JSON is written anew after every row.

Simulations take most of the 20 minutes. ``--simulations`` keeps them in a folder, so that the time model can be tried
again in seconds; delete the folder when something that is simulated changes.
"""

import argparse
import csv
import datetime
import hashlib
import math
import pickle
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import torch
import yaml
from rich.console import Console
from rich.table import Table
from shared import write_result

from hf_efficient.errors import SetupError
from hf_efficient.facts.environment import quieten_libraries, replaced
from hf_efficient.facts.tables import accelerator
from hf_efficient.planning import blank_model as blank_model_module
from hf_efficient.planning.gpu import demand_of, planned_gpu
from hf_efficient.planning.model_config import model_config
from hf_efficient.planning.ranks.log import Score
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
_LIGER = (
    "train.use_liger_kernel=true",
    "train.liger_kernel_config={rms_norm: true, rope: true, swiglu: false, cross_entropy: %s, "
    "fused_linear_cross_entropy: %s}",
)
_PLAIN = ("plain", "no-kbit-casts", "trl-kbit-casts")
_FUSED = ("fused", "fused+liger-flce")


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
        return self.model, self.method, self.kernels, self.source, self.batch, self.seq, self.autocast, several

    @property
    def casts(self) -> bool:
        """TRL leaves out ``prepare_model_for_kbit_training`` where 4-bit weights are sharded."""
        return self.kernels == "trl-kbit-casts" and self.gpus == 1


@dataclass(frozen=True)
class Held:
    """A row against its plan, whose tokens per second are of a GPU."""

    run: PublishedRun
    verdict: Literal["fits", "tight", "does not fit"]
    planned_peak_bytes: int
    planned_needed_bytes: int
    planned_tokens_per_second: float | None
    differs: str

    @property
    def peak_error(self) -> float | None:
        return None if self.run.peak_bytes is None else self.planned_peak_bytes / self.run.peak_bytes - 1

    @property
    def speed_error(self) -> float | None:
        planned, published = self.planned_tokens_per_second, self.run.tokens_per_second
        return None if planned is None or published is None else planned / published - 1


def read_runs(path: Path) -> list[PublishedRun]:
    """Raises ``SetupError``: a row lacks a setting that a plan needs."""
    with path.open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    for place, row in enumerate(rows, 1):
        _check(row, f"{path.name}, row {place}")
    return [_run(row, place) for place, row in enumerate(rows)]


_MEASURED = ("peak_allocated_bytes", "tokens_per_second_per_gpu")


def _check(row: Mapping[str, str], where: str) -> None:
    settings = ("source", "model", "method", "kernels", "gpus", "batch", "seq", "bf16_autocast", "ran")
    missing = [name for name in (*settings, *(_MEASURED if row.get("ran") == "1" else ())) if not row.get(name)]
    if missing:
        raise SetupError(f"{where}: {missing[0]} is not given, and no plan can be made. Fill it in, or delete the row.")
    for name, known in (("method", ("full", "lora", "qlora")), ("kernels", (*_PLAIN, *_FUSED))):
        if row[name] not in known:
            raise SetupError(f"{where}: {name} is {row[name]}. Write one of: {', '.join(known)}.")


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
        peak_bytes=int(row[_MEASURED[0]]) if ran else None,
        tokens_per_second=float(row[_MEASURED[1]]) if ran else None,
        ran=ran,
        apart=place % EVERY == EVERY - 1,
    )


def recipe_of(run: PublishedRun, *, whole: bool = False) -> Recipe:
    """Rows of documents cut to one length, each attended to as a whole: what ``packing`` was in their TRL. ``whole``:
    as one process would train; what ranks do is added to that."""
    adapted = ("adapter.r=16", "adapter.alpha=16", "adapter.dropout=0.1")
    spread_out = run.gpus > 1 and not whole
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
            f"distributed.processes={run.gpus if spread_out else 1}",
            f"distributed.strategy={'fsdp2' if spread_out else 'none'}",
            *_kernels(run),
            f"adapter.fused={str(_fuses_lora(run) and not spread_out).lower()}",
        ],
    )


def _fuses_lora(run: PublishedRun) -> bool:
    """ "fused_lora only required for quant-peft" (fms-acceleration, ``framework_plugin_fast_kernels.py``). Theirs run
    under FSDP as well, where ours do not."""
    return run.method == "qlora" and run.kernels not in _PLAIN


def _kernels(run: PublishedRun) -> Iterator[str]:
    if run.kernels not in _PLAIN:
        in_head = run.kernels == _FUSED[1]
        yield _LIGER[0]
        yield _LIGER[1] % (str(not in_head).lower(), str(in_head).lower())


def held_against(runs: Iterable[PublishedRun], folder: Path | None = None) -> Iterator[Held]:
    """The plans, one simulation for rows that differ in their number of ranks alone; ``folder`` keeps simulations."""
    ordered = sorted(runs, key=lambda run: repr(run.simulated_as))
    for _, same in groupby(ordered, key=lambda run: run.simulated_as):
        group = list(same)
        whole = _kept(group[0], folder) if folder is not None else _simulated(group[0])
        for run in group:
            yield _held(run, recipe_of(run), whole)


def _kept(run: PublishedRun, folder: Path) -> Simulation:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(repr(run.simulated_as).encode()).hexdigest()[:16]}.pickle"
    if path.exists():
        found: Simulation = pickle.loads(path.read_bytes())
        return found
    made = _simulated(run)
    log: Any = SimpleNamespace(lives=made.log.lives, events=made.log.events)  # the rest is closures
    path.write_bytes(pickle.dumps(replace(made, log=log)))
    return made


def _simulated(run: PublishedRun) -> Simulation:
    recipe = recipe_of(run, whole=True)
    computes_in = torch.bfloat16 if run.gpus > 1 and run.autocast else None
    with loss_of(run.source), experts_in_a_loop(), casts_for_training() if run.casts else nullcontext():
        return simulate(recipe, model_config(recipe.model), computes_in=computes_in)


def with_kept_hidden_states(simulation: Simulation) -> Simulation:
    """With FSDP1 on frozen weights the input of each layer and its gradient stay until the whole backward ends.

    The layer is wrapped inside of its reentrant checkpoint, which computes it again from a detached input, a leaf. To
    shard weights again, ``_register_post_backward_reshard_only_hook`` (``distributed/fsdp/_runtime_utils.py``)
    hangs ``register_multi_grad_hook`` (``autograd/graph.py``) on that leaf. The hook holds its ``AccumulateGrad``, and
    so the leaf and its ``.grad``, until ``_finalize_params`` takes it out after the root's backward. Trained flat
    weights have none. A test sees it in torch's own FSDP1."""
    lives, score = simulation.log.lives, Score(simulation)
    ends = [
        min((life.born_at for life in lives if life.phase == "optimizer" and life.born_at > start), default=None)
        for start in simulation.backward_starts
    ]
    for start, end in zip(simulation.backward_starts, ends, strict=True):
        kept = [life for life in lives if life.lives_at(start) and simulation.category(life) == "activations"]
        ((shape, _),) = Counter(life.shape for life in kept).most_common(1)  # the layers' inputs
        for life in kept:
            if life.shape == shape and end is not None and life.freed_at is not None and life.freed_at < end:
                for _ in range(2):
                    size = life.dtype.itemsize
                    held = score.add(life.freed_at, life.bytes, "activations", life.module, "backward", size)
                    score.end(held, end)
    return score.written()


@contextmanager
def casts_for_training() -> Iterator[None]:
    """Within, what is not quantized is cast to float32 (``peft.prepare_model_for_kbit_training``)."""
    plain: Any = blank_model_module.add_adapter

    def cast(model: Any, *args: Any, **more: Any) -> Any:
        for module in model.modules():
            if type(module).__name__ != "Linear4bit":
                for name, weight in list(module._parameters.items()):
                    if weight is not None:
                        module._parameters[name] = torch.nn.Parameter(weight.float(), requires_grad=False)
        return plain(model, *args, **more)

    with replaced(blank_model_module, "add_adapter", cast):
        yield


class ExpertsInALoop(torch.nn.Module):
    """Mixtral's experts up to transformers 4: linear layers of their own, which bitsandbytes packs one by one, and a
    loop over them (``MixtralSparseMoeBlock`` of 4.48). Each expert is given as many rows as any other."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        narrow, wide = config.hidden_size, config.intermediate_size
        widths = {"w1": (narrow, wide), "w2": (wide, narrow), "w3": (narrow, wide)}
        layers = [
            torch.nn.ModuleDict({name: torch.nn.Linear(*both, bias=False) for name, both in widths.items()})
            for _ in range(config.num_local_experts)
        ]
        self.experts = torch.nn.ModuleList(layers)

    def forward(self, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """As transformers calls today's: ``hidden`` is (tokens, width), the others are (tokens, experts of each)."""
        weights, out = weights.to(hidden.dtype), torch.zeros_like(hidden)
        layers: Any
        for layers in self.experts:
            places, rows = torch.empty_like(chosen).view(-1)[: 2 * (chosen.numel() // len(self.experts))].chunk(2)
            inner = hidden[None, rows].reshape(-1, hidden.shape[-1])
            inner = layers["w2"](torch.nn.functional.silu(layers["w1"](inner)) * layers["w3"](inner))
            out.index_add_(0, rows, (inner * weights[rows, places, None]).to(hidden.dtype))
        return out


def experts_in_a_loop() -> AbstractContextManager[None]:
    """Within, models of Mixtral are built with such experts."""
    from transformers.models.mixtral import modeling_mixtral

    return replaced(modeling_mixtral, "MixtralExperts", ExpertsInALoop)


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
        with replaced(kind, "forward", in_float32) if source == LIGER_TABLE else nullcontext():
            yield
    finally:
        known["ForCausalLM"] = today


LIGER_TABLE = "a100_80gb_liger"
"""The part of the table that ran with transformers 4.45."""
_FEWEST_WORDS = 32_000
"""Of a vocabulary: no other layer of these models is as wide."""


def _held(run: PublishedRun, recipe: Recipe, whole: Simulation) -> Held:
    simulation = spread(whole, sharding_of(recipe), mixed=run.autocast)
    if run.gpus > 1 and run.method != "full":
        simulation = with_kept_hidden_states(simulation)
    gpu, memory = planned_gpu(demand_of(recipe, simulation), accelerator(GPU)), planned_memory(simulation)
    speed = None if gpu.tokens_per_second is None else gpu.tokens_per_second / run.gpus
    # What cuBLAS takes is part of what torch counts; it is not known where the plan does not fit.
    peak = gpu.allocated_bytes or memory.peak_allocated_bytes
    verdict: Literal["fits", "tight", "does not fit"] = "tight" if gpu.tight else "fits" if gpu.fits else "does not fit"
    return Held(run, verdict, peak, gpu.needed_bytes, speed, "; ".join(_differences(run)))


def _differences(run: PublishedRun) -> Iterator[str]:
    """What it ran with and the plan has not."""
    if run.gpus > 1:
        yield "FSDP1 there, FSDP2 here" + ("" if run.method == "full" else " with the hidden states that FSDP1 kept")
    if "Mixtral" in run.model:
        yield "each expert waits for the host there, and has its own number of rows"


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
        "ran_and_does_not_fit": sum(one.verdict == "does not fit" for one in ran),
        "out_of_memory": len(failed),
        "out_of_memory_and_fits": sum(one.verdict == "fits" for one in failed),
        "tight": sum(one.verdict == "tight" for one in held),
    }


def error_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of ``facts/data/plan_errors.yaml`` from those of a result: published over planned, less 1. A kind with
    fewer than twenty trainings knows little of its own error: its interval also holds that of all kinds."""
    kinds: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        run = row["run"]
        kind = ("full" if run["method"] == "full" else "adapter", "one" if run["gpus"] == 1 else "several")
        for figure, error in (("memory", row["peak_error"]), ("speed", row["speed_error"])):
            if error is not None:
                kinds.setdefault((figure, *kind), []).append(1 / (1 + error) - 1)
    every = {figure: [one for kind in kinds if kind[0] == figure for one in kinds[kind]] for figure, _, _ in kinds}
    return [_error_row(kind, errors, every[kind[0]]) for kind, errors in sorted(kinds.items())]


def _error_row(kind: tuple[str, str, str], errors: Sequence[float], every: Sequence[float]) -> dict[str, Any]:
    figure, method, gpus = kind
    intervals = [_interval(errors)] if len(errors) >= _FEW else [_interval(errors), _interval(every)]
    low, high = min(one for one, _ in intervals), max(other for _, other in intervals)
    figures = {"low": round(low, 4), "high": round(high, 4), "trainings": len(errors)}
    return {"figure": figure, "method": method, "gpus": gpus, **figures, "source": SOURCE}


def _interval(errors: Sequence[float]) -> tuple[float, float]:
    last, ordered = len(errors) - 1, sorted(errors)
    return ordered[math.floor(_RARE * last)], ordered[math.ceil((1 - _RARE) * last)]


_RARE, _FEW = 0.05, 20
SOURCE = "fms-acceleration, scripts/benchmarks/refs, NVIDIA A100 80 GB"
_HEAD = """\
# How far published trainings were from their plans: measured over planned, less 1, from the 5th to the 95th percentile,
# or where there are fewer than twenty, as wide as all kinds of the figure together at least. Written by
#   python benchmarks/published_runs.py TABLE.csv --json benchmarks/results/published_runs.json --errors THIS_FILE
"""


def _write_errors(path: Path, held: Sequence[Held]) -> None:
    found = error_rows({**asdict(one), "peak_error": one.peak_error, "speed_error": one.speed_error} for one in held)
    path.write_text(
        _HEAD + yaml.safe_dump(found, sort_keys=False, default_flow_style=None, width=200), encoding="utf-8"
    )


console = Console()


def main() -> None:
    """Plan all rows, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="the CSV")
    parser.add_argument("--only", default="", metavar="WORDS", help="rows whose name has these words")
    parser.add_argument("--open", action="store_true", help="without the rows that are kept apart")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every row")
    parser.add_argument("--errors", type=Path, metavar="FILE", help="write the errors as facts of the package")
    parser.add_argument("--simulations", type=Path, metavar="FOLDER", help="keep what was simulated there")
    options = parser.parse_args()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    try:
        table = read_runs(options.table)
    except SetupError as error:
        parser.error(str(error))
    runs = [run for run in table if options.only in run.name and not (options.open and run.apart)]
    held: list[Held] = []
    for one in held_against(runs, options.simulations):
        held.append(one)
        console.print(f"{len(held)} of {len(runs)}: {one.run.name}", highlight=False)
        if options.json is not None:
            _write(options.json, started, held)
    if options.errors is not None:
        _write_errors(options.errors, held)
    for name, part in _parts(held).items():
        _print(name, part)


def _parts(held: Sequence[Held]) -> dict[str, list[Held]]:
    parts = {"open": [one for one in held if not one.run.apart], "apart": [one for one in held if one.run.apart]}
    return {name: part for name, part in parts.items() if part}


def _write(path: Path, started: datetime.datetime, held: Sequence[Held]) -> None:
    rows = [{**asdict(one), "peak_error": one.peak_error, "speed_error": one.speed_error} for one in held]
    summaries = {name: summary(part) for name, part in _parts(held).items()}
    write_result(path, "published_runs", started, {"gpu": GPU, "summary": summaries, "rows": rows})


def _print(name: str, held: Sequence[Held]) -> None:
    found = summary(held)
    console.print(f"\n{name}: {len(held)} rows", style="bold")
    for figure in ("peak", "tokens_per_second"):
        errors = found[figure]
        if errors is not None:
            shares = ", ".join(f"{key} {errors[key]:.1%}" for key in ("median", "p90", "worst", "bias"))
            console.print(f"{figure}: {shares} of {errors['rows']} rows", highlight=False)
    console.print(
        f"of {found['ran']} that ran {found['ran_and_does_not_fit']} are planned not to fit; of "
        f"{found['out_of_memory']} that ran out of memory {found['out_of_memory_and_fits']} are planned to fit; "
        f"{found['tight']} are tight",
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
    _print_kinds([one for one in held if one.run.ran])
    for one in held:
        if one.verdict == ("does not fit" if one.run.ran else "fits"):
            what = "ran, and is planned not to fit" if one.run.ran else "ran out of memory, and is planned to fit"
            console.print(f"{one.run.name}: {what} ({one.planned_needed_bytes / 2**30:.1f} GiB)", highlight=False)


def _print_kinds(ran: Sequence[Held]) -> None:
    table = Table("kind", "rows", *("median", "worst", "bias") * 2, title="peak, tokens/s", box=None)
    for method, gpus in sorted({(one.run.method, one.run.gpus) for one in ran}):
        part = [one for one in ran if (one.run.method, one.run.gpus) == (method, gpus)]
        found = summary(part)
        figures = [found[key][name] for key in ("peak", "tokens_per_second") for name in ("median", "worst", "bias")]
        table.add_row(f"{method}, {gpus} GPU", f"{len(part)}", *(f"{one:+.1%}" for one in figures))
    console.print(table)


if __name__ == "__main__":
    main()
