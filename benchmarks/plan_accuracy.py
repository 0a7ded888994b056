"""How near is the memory that a plan predicts to what the training takes?

    python benchmarks/plan_accuracy.py [--case WORDS] [--json FILE]

Of each case the plan's simulation predicts the peak of allocated bytes over two optimizer steps; then the same trainer
trains a real model of that shape, with random weights, and the profiler's allocation events tell the real peak. The two
share the recipe and nothing of the measurement.
"""

import argparse
import datetime
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from shared import load_average, write_result
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, PretrainedConfig

from hf_efficient.callbacks.checks import keep_four_bit_trainable
from hf_efficient.facts.environment import cpu_emulates_bf16, quieten_libraries
from hf_efficient.model.adapter import add_adapter
from hf_efficient.model.load import load_base, load_teacher
from hf_efficient.planning.arguments import simulation_arguments
from hf_efficient.planning.simulated_trainer import is_evaluated
from hf_efficient.planning.trainers import longest_rows, simulation_trainer
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.recipe.train_fields import is_packed

_SMALL = {
    "vocab_size": 8192,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
}

MODELS: Mapping[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **_SMALL},
    "mistral": {"model_type": "mistral", **_SMALL, "sliding_window": 128},
    "qwen2": {"model_type": "qwen2", **_SMALL, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", **_SMALL, "head_dim": 32},
    "narrow": {"model_type": "llama", **_SMALL, "vocab_size": 256, "num_hidden_layers": 8},
    "gemma2": {"model_type": "gemma2", **_SMALL, "head_dim": 32, "sliding_window": 128},
    "mixtral": {"model_type": "mixtral", **_SMALL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_SMALL,
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 256,
    },
}
"""Small models of several families, by the fields of their ``config.json``; weights are random."""


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        model: a key of ``MODELS``, or the name of a shipped shape.
        method: full, lora or qlora.
        length: tokens of a row.
        train: fields of ``SFTConfig``.
        adapter: fields of the recipe's ``adapter``.
        dtype: of the weights.
        attention: ``model.attn_implementation``.
        metrics: of an evaluation after the two steps; None: there is none.
        objective: of the recipe.
    """

    model: str
    method: str
    length: int
    train: Mapping[str, Any] = field(default_factory=dict)
    adapter: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"
    attention: str | None = None
    metrics: tuple[str, ...] | None = None
    objective: str = "sft"

    @property
    def name(self) -> str:
        """In words, without spaces at the ends."""
        extra = [f"{key}={value}" for key, value in {**self.adapter, **self.train}.items()]
        attention = [self.attention] if self.attention else []
        evaluated = [] if self.metrics is None else ["evaluated", *self.metrics]
        objective = [] if self.objective == "sft" else [self.objective]
        return " ".join(
            [*objective, self.model, self.method, self.dtype, f"length={self.length}", *attention, *extra, *evaluated]
        )


def _train(rows: int = 2, **fields: Any) -> dict[str, Any]:
    """``gradient_checkpointing`` is on in ``SFTConfig``; here only where a case says so."""
    return {"per_device_train_batch_size": rows, "gradient_checkpointing": False, **fields}


_SMOL = "HuggingFaceTB/SmolLM2-135M"
_CKPT = {"gradient_checkpointing": True}
_CHUNKED = {"loss_type": "chunked_nll"}

CASES: tuple[Case, ...] = (
    Case(_SMOL, "lora", 512, _train()),
    Case(_SMOL, "lora", 512, _train(**_CKPT)),
    Case(_SMOL, "lora", 256, _train(4, gradient_accumulation_steps=4)),
    Case(_SMOL, "lora", 256, _train(bf16=True)),
    Case(_SMOL, "lora", 256, _train(), attention="eager"),
    Case(_SMOL, "lora", 512, _train(), {"dora": True}),
    Case(_SMOL, "qlora", 256, _train()),
    Case(_SMOL, "qlora", 512, _train(**_CKPT)),
    Case(_SMOL, "full", 256, _train()),
    Case(_SMOL, "full", 256, _train(bf16=True), dtype="float32"),
    Case(_SMOL, "full", 256, _train(**_CKPT)),
    Case("llama", "full", 512, _train(), dtype="float32"),
    Case("llama", "full", 512, _train(), dtype="bfloat16"),
    Case("llama", "full", 512, _train(bf16=True), dtype="float32"),
    Case("llama", "full", 1024, _train(1, **_CKPT)),
    Case("llama", "full", 512, _train(gradient_accumulation_steps=3)),
    Case("llama", "full", 256, _train(4, optim="sgd")),
    Case("llama", "full", 256, _train(4, optim="adafactor")),
    Case("llama", "full", 256, _train(4, optim="adamw_torch")),
    Case("llama", "full", 256, _train(4, optim="rmsprop")),
    Case("llama", "lora", 512, _train(loss_type="dft")),
    Case("llama", "lora", 512, _train(packing=True, bf16=True)),
    Case("llama", "lora", 512, _train(), attention="eager"),
    Case("llama", "lora", 512, _train(), {"target_modules": ["q_proj", "v_proj"], "r": 64}),
    Case("llama", "qlora", 512, _train(bf16=True)),
    Case("mistral", "full", 512, _train(bf16=True), dtype="float32"),
    Case("mistral", "lora", 1024, _train(1, **_CKPT)),
    Case("mistral", "qlora", 512, _train(**_CKPT)),
    Case("qwen2", "full", 512, _train()),
    Case("qwen2", "lora", 512, _train(**_CKPT)),
    Case("qwen3", "full", 512, _train(bf16=True), dtype="float32"),
    Case("qwen3", "lora", 512, _train()),
    Case("narrow", "full", 1024, _train(4), dtype="float32"),
    Case("narrow", "full", 1024, _train(4, bf16=True), dtype="float32"),
    Case("narrow", "full", 1024, _train(4, **_CKPT)),
    Case("narrow", "full", 512, _train(4), attention="eager"),
    Case("narrow", "lora", 1024, _train(4)),
    Case("narrow", "lora", 1024, _train(4, bf16=True, **_CKPT)),
    Case("narrow", "lora", 512, _train(4), {"dropout": 0.1, "dora": True}),
    Case("narrow", "qlora", 1024, _train(4, bf16=True)),
    Case("narrow", "lora", 512, _train(4, **_CKPT), {"dora": True}),
    Case("narrow", "qlora", 512, _train(4, bf16=True), {"quantization": {"compute_dtype": "float32"}}),
    Case("narrow", "qlora", 1024, _train(4, **_CKPT)),
    Case("llama", "lora", 256, _train(1, per_device_eval_batch_size=8, **_CKPT), metrics=()),
    Case("llama", "lora", 256, _train(1, per_device_eval_batch_size=8, **_CKPT), metrics=("perplexity",)),
    Case("qwen2", "qlora", 256, _train(1, per_device_eval_batch_size=8, bf16=True), metrics=("token_accuracy",)),
    Case(_SMOL, "lora", 256, _train(1, per_device_eval_batch_size=8, **_CKPT), metrics=("perplexity",)),
    Case("gemma2", "full", 512, _train()),
    Case("gemma2", "lora", 512, _train(**_CKPT)),
    Case("gemma2", "qlora", 512, _train()),
    Case(_SMOL, "lora", 512, _train(2, **_CHUNKED)),
    Case(_SMOL, "lora", 512, _train(2, **_CHUNKED, **_CKPT)),
    Case(_SMOL, "qlora", 512, _train(4, **_CHUNKED, bf16=True, packing=True)),
    Case("llama", "full", 512, _train(4, **_CHUNKED), dtype="float32"),
    Case("llama", "full", 512, _train(4, **_CHUNKED, bf16=True, gradient_accumulation_steps=2), dtype="float32"),
    Case("llama", "lora", 1024, _train(4, **_CHUNKED, **_CKPT)),
    Case("qwen2", "full", 1024, _train(4, **_CHUNKED, **_CKPT)),
    Case("gemma2", "qlora", 1024, _train(4, **_CHUNKED, **_CKPT)),
    Case("llama", "lora", 256, _train(1, per_device_eval_batch_size=8, **_CHUNKED, **_CKPT), metrics=()),
    Case(_SMOL, "lora", 256, _train(1, per_device_eval_batch_size=8, **_CHUNKED, **_CKPT), metrics=("perplexity",)),
    Case("mixtral", "full", 512, _train(), dtype="float32"),
    Case("mixtral", "lora", 512, _train(bf16=True)),
    Case("mixtral", "qlora", 512, _train(bf16=True)),
    Case("mixtral", "qlora", 512, _train(2, **_CKPT, **_CHUNKED)),
    Case("qwen3_moe", "qlora", 512, _train(4, bf16=True, **_CKPT, **_CHUNKED)),
    Case("qwen3_moe", "qlora", 256, _train(), {"target_modules": ["q_proj", "v_proj"]}),
    *(Case("llama", "lora", 256, _train(), objective=name) for name in ("dpo", "kto", "reward", "orpo", "cpo")),
    *(Case("llama", "full", 256, _train(), objective=name) for name in ("dpo", "kto", "reward", "orpo", "cpo")),
    *(
        Case("qwen2", "qlora", 512, _train(bf16=True, **_CKPT), objective=name)
        for name in ("dpo", "kto", "reward", "orpo", "cpo")
    ),
    Case("llama", "full", 256, _train(4, bf16=True, **_CKPT), dtype="float32", objective="dpo"),
    Case("llama", "lora", 512, _train(2, gradient_accumulation_steps=2), objective="dpo"),
)


def real_peak(recipe: Recipe, config: PretrainedConfig, length: int) -> int:
    """Bytes allocated at most while two optimizer steps train and a batch is evaluated, the model's own included.

    The model is saved with random weights and loaded as a run loads it, quantized where the recipe says so.

    Args:
        recipe: of any objective.
        config: of its model.
        length: tokens of a row.
    """
    with tempfile.TemporaryDirectory() as folder:
        dtype = torch.float32 if recipe.model.dtype == "float32" else torch.bfloat16
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
        located = recipe.model_copy(update={"model": recipe.model.model_copy(update={"id": folder})})
        args = simulation_arguments(recipe, folder)
        base = load_base(located)
        model = add_adapter(base, recipe.adapter, seed=args.seed, checkpointing=args.gradient_checkpointing)
        keep_four_bit_trainable(model)
        trainer = _trainer(located, model, args, length)
        reference = getattr(trainer, "ref_model", None) or getattr(trainer, "teacher_model", None)
        before = _bytes(model) + (0 if reference is None else _bytes(reference))
        # Where oneDNN emulates bfloat16, a product takes a float32 copy of its result, which no plan holds.
        own_kernels = torch.backends.mkldnn.flags(enabled=not cpu_emulates_bf16())
        with own_kernels, profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            trainer.train()
            if is_evaluated(recipe):
                _evaluate(trainer, length)
    live = most = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda one: one.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return before + most


def _trainer(recipe: Recipe, model: Any, args: Any, length: int) -> Any:
    teacher = load_teacher(recipe) if recipe.runs_teacher else None
    if OBJECTIVES[recipe.objective].imitates:
        return simulation_trainer(recipe, model, args, length, teacher=teacher)
    if OBJECTIVES[recipe.objective].generates:
        from hf_efficient.planning.completions import completion_trainer

        return completion_trainer(recipe, model, args, length, teacher)
    from hf_efficient.planning.trainers import preference_trainer

    has_reference = OBJECTIVES[recipe.objective].reference and recipe.adapter.method == "full"
    reference = load_base(recipe) if has_reference else None
    return preference_trainer(recipe, model, reference, args, length)


def _evaluate(trainer: Any, length: int) -> None:
    """transformers' own evaluation loop on one batch."""
    trainer.args.prediction_loss_only = trainer.compute_metrics is None
    args = trainer.args
    trainer.evaluate(longest_rows(args, length, args.per_device_eval_batch_size, packed=is_packed(args, "eval")))


def _bytes(model: Any) -> int:
    """Of all storages that the model holds, quantization constants included."""
    from hf_efficient.recording.activations import Storages, model_tensors

    held = Storages()
    held.add(tensor for tensor, _ in model_tensors(model))
    return sum(held.bytes_by_device().values())


console = Console()


def main() -> None:
    """Measure the cases asked for, print and write them."""
    options = _options()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    chosen = [case for case in CASES if not options.case or all(word in case.name for word in options.case.split())]
    found = []
    for case in chosen:
        found.append(_measured(case))
        console.print(_line(found[-1]), highlight=False)
    errors = [abs(one["error"]) for one in found]
    summary = {"cases": len(found), "median_error": statistics.median(errors), "worst_error": max(errors)}
    console.print(_table(found))
    console.print(f"median error {100 * summary['median_error']:.2f}%, worst {100 * summary['worst_error']:.2f}%")
    if options.json is not None:
        write_result(options.json, "plan_accuracy", started, {**summary, "load": load_average(), "found": found})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", metavar="WORDS", help="only cases whose name holds all of these words")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every case")
    return parser.parse_args()


def _measured(case: Case) -> dict[str, Any]:

    from hf_efficient.planning.model_config import model_config
    from hf_efficient.planning.simulation import planned_memory, simulate

    with tempfile.TemporaryDirectory() as folder:
        recipe = recipe_of(case, Path(folder))
        config = model_config(recipe.model)
        began = time.perf_counter()
        memory = planned_memory(simulate(recipe, config, case.length, on_gpu=False))
        seconds = time.perf_counter() - began
        real = real_peak(recipe, config, case.length)
    return {
        "name": case.name,
        "predicted_bytes": memory.peak_allocated_bytes,
        "measured_bytes": real,
        "error": memory.peak_allocated_bytes / real - 1,
        "peak_phase": memory.peak_phase,
        "plan_seconds": round(seconds, 2),
        "case": asdict(case),
    }


def recipe_of(case: Case, folder: Path) -> Any:
    """The recipe of a case, written into a folder."""
    import json

    import yaml

    from hf_efficient.recipe.load import load_recipe

    model = case.model
    if model in MODELS:
        (folder / "config.json").write_text(json.dumps(MODELS[model]))
        model = str(folder)
    section = {"id": model, "dtype": case.dtype}
    if case.attention is not None:
        section["attn_implementation"] = case.attention
    recipe = {
        "name": "plan-accuracy",
        "model": section,
        "adapter": {"method": case.method, **case.adapter},
        "objective": case.objective,
        "data": _data(case, folder),
        "train": {"max_length": case.length, **case.train},
        "output_dir": str(folder / "out"),
    }
    if case.metrics is not None:
        recipe["evaluate"] = {"metrics": list(case.metrics)}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return load_recipe(str(path))


def _data(case: Case, folder: Path) -> dict[str, Any]:
    if case.objective != "sft":  # its rows are the simulation's own
        (folder / "pairs.jsonl").touch()
        return {"train": [{"path": str(folder / "pairs.jsonl")}]}
    own = {"path": "builtin:python-docstrings"}
    return {"train": [own]} if case.metrics is None else {"train": [own], "eval": [{**own, "split": "eval"}]}


def _line(one: dict[str, Any]) -> str:
    return f"{100 * one['error']:+7.3f}%  {one['measured_bytes'] / 2**20:9.1f} MiB  {one['name']}"


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("case", "predicted", "measured", "error", box=None)
    for one in sorted(found, key=lambda each: -abs(each["error"])):
        table.add_row(
            one["name"],
            f"{one['predicted_bytes'] / 2**20:.1f} MiB",
            f"{one['measured_bytes'] / 2**20:.1f} MiB",
            f"{100 * one['error']:+.3f}%",
        )
    return table


if __name__ == "__main__":
    main()
