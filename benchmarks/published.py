"""How near is a plan to what others have published of real GPUs?

    python benchmarks/published.py [--only WORDS] [--json FILE]

Each of ``RECIPES`` and ``HEADS`` has a figure, where it was read, and the recipe that comes nearest to its setting.
The table holds the plan's peak of allocated bytes against it, and says what is not the same. Of an LM head that was
measured alone the same operators run on tensors without values.

Figures of memory that others have published, with the recipe that comes nearest to how they were measured.

Every figure was read at its source, in the revision that is named; so were the settings. What a source does not say, or
what a plan does not do, is in ``NOT_COMPARED``.
"""

import argparse
import datetime
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from published_runs import LIGER_TABLE, loss_of
from rich.console import Console
from rich.table import Table
from shared import write_result
from torch.nn import functional

from hf_efficient.facts.environment import quieten_libraries
from hf_efficient.planning.plan import plan
from hf_efficient.recipe.load import load_recipe
from hf_efficient.recipe.schema import Recipe
from hf_efficient.simulate.blank import blank
from hf_efficient.simulate.tensor_log import TensorLog, find_peak

GIB = 2**30
_TORCHTUNE = "https://github.com/meta-pytorch/torchtune/blob"
_FIRST_TABLE = f"{_TORCHTUNE}/30b8519e86d2094879576e16ab1f8d21a6f6f9f7/README.md"
_LADDER = f"{_TORCHTUNE}/1814feb17a9038e1a8053ce93111bd26774a8db6/README.md"
_UNSLOTH = "https://docs.unsloth.ai/basics/unsloth-benchmarks"
_QLORA = "https://github.com/artidoro/qlora/blob/7f4e95a68dc076bea9b3a413d2b512eca6d004e5"
_ANSWER_AI = (
    "https://github.com/AnswerDotAI/fsdp_qlora/blob/23fafdfb4af403d0808038adafbfd74de265d33a/benchmarks_03_2024.md"
)
_LIGER = "https://github.com/linkedin/Liger-Kernel/blob/7e3683e23f8a9a5663913fd0ea7b0b03ea1a667b/benchmark"


@dataclass(frozen=True)
class RecipeCase:
    """A training that somebody has measured.

    Attributes:
        name: the setting, in words.
        source: where the figure was read.
        published_bytes: the figure.
        bound: whether it says only that so much is enough.
        recipe: a shipped recipe.
        overrides: what makes it theirs.
        gpu: on which it ran.
        differs: in words, what is not the same.
        config: ``config.json`` of a model whose shape does not ship; None: the recipe's own.
        reserved: the figure is of reserved bytes, taken from the device; else of allocated ones.
        loss_of_2024: the loss copies the logits to float32, as transformers 4.38 did (``published_runs.py``).
    """

    name: str
    source: str
    published_bytes: float
    recipe: str
    overrides: Sequence[str]
    gpu: str
    differs: str
    bound: bool = False
    config: Mapping[str, Any] | None = None
    reserved: bool = False
    loss_of_2024: bool = False


@dataclass(frozen=True)
class HeadCase:
    """An LM head in bfloat16 and its cross-entropy, forward and backward, measured alone.

    Attributes:
        tokens: that it projects.
        published_bytes: peak that was allocated.
        source: where the figure was read.
        hidden, vocabulary: of the head.
    """

    tokens: int
    published_bytes: float
    source: str = f"{_LIGER}/data/all_benchmark_data.csv"
    hidden: int = 4096
    vocabulary: int = 128256


def _lines(*overrides: str) -> tuple[str, ...]:
    """Full rows of two, one micro-batch to a step, nothing but training."""
    return (
        "train.packing=false",
        "train.per_device_train_batch_size=2",
        "train.gradient_accumulation_steps=1",
        "train.optim=adamw_torch_fused",
        "data.eval=[]",
        "train.eval_strategy=no",
        "evaluate.at_end=false",
        "evaluate.metrics=[]",
        "adapter.dropout=0",
        *overrides,
    )


_MLP = "gate_proj, up_proj, down_proj"
_OFFLOADED = "train.activation_offloading=true"
_CHUNKED = "train.loss_type=chunked_nll"
_WHOLE = "train.loss_type=nll"
_FULL_3B = ("model.dtype=bfloat16", "train.bf16=false", "train.max_length=4096")
_ADAPTED_3B = ("train.max_length=4096", "adapter.r=64", "adapter.alpha=128", _CHUNKED)
_BFLOAT16_ADAPTER = "their adapter is in bfloat16, ours in float32, and so is its input; "
_WHOLE_LOGITS = "their chunked loss keeps the whole logits in bfloat16 and chunks the copy in float32; "

LLAMA_65B: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "dtype": "bfloat16",
}
"""Source: ``facebook/llama-65b`` in https://github.com/PaddlePaddle/PaddleNLP, llama/configuration.py."""

LONGEST: Mapping[str, tuple[int, int]] = {
    "RTX 4090": (24, 5789),
    "A100 40GB SXM": (40, 12264),
    "L40S": (48, 15502),
    "A100 80GB SXM": (80, 28454),
}
"""GB of a GPU, and the longest row that fits by Unsloth's table (Hugging Face with FlashAttention-2). It names GPUs by
their memory alone."""


def _longest(gpu: str, gib: int, length: int) -> RecipeCase:
    return RecipeCase(
        f"Unsloth's table, Llama-3.1-8B, QLoRA r=32, 1 x {length:,}, the longest on {gib} GB, checkpointed",
        _UNSLOTH,
        gib * GIB,
        "llama3.1-8b/qlora",
        _lines(
            "train.per_device_train_batch_size=1",
            f"train.max_length={length}",
            "model.attn_implementation=flash_attention_2",
            "adapter.r=32",
            "adapter.alpha=32",
            f"adapter.target_modules=[q_proj, k_proj, v_proj, o_proj, {_MLP}]",
            _WHOLE,
        ),
        gpu,
        "transformers of 2024, which copied the logits to float32; optimizer, dropout and accumulation are not said; "
        "predicted without the context",
        bound=True,
    )


def _answer_ai(
    method: str, rows: int, length: int, gib: float, *, ddp: bool = False, reserved: bool = True
) -> RecipeCase:
    """Two RTX 3090. The document has the commands, and ``train.py`` the defaults of what they leave out."""
    told = f"{'whole' if ddp else 'sharded'}, checkpointed, {'reserved' if reserved else 'allocated'}"
    return RecipeCase(
        f"Answer.AI, Llama-2-7B, {method} r=64, {rows} x {length:,}, 2 GPUs, {told}",
        _ANSWER_AI,
        gib * GIB,
        f"llama3.1-8b/{method.lower()}",
        _lines(
            "model.id=meta-llama/Llama-2-7b-hf",
            "model.dtype=bfloat16",
            "model.attn_implementation=sdpa",
            "adapter.r=64",
            "adapter.alpha=16",
            "adapter.dropout=0.1",
            f"adapter.target_modules=[q_proj, k_proj, v_proj, {_MLP}]",
            "adapter.fused=false",
            "train.bf16=false",
            "train.optim=adamw_torch",
            f"train.max_length={length}",
            f"train.per_device_train_batch_size={rows}",
            "distributed.processes=2",
            f"distributed.strategy={'ddp' if ddp else 'fsdp2'}",
            _WHOLE,
        ),
        "RTX 3090",
        f"FSDP1 there, {'DDP' if ddp else 'FSDP2'} here; {_BFLOAT16_ADAPTER[:-2]}",
        reserved=reserved,
        loss_of_2024=True,
    )


RECIPES: tuple[RecipeCase, ...] = (
    RecipeCase(
        "torchtune, Llama-3.1-8B, QLoRA, 2 x 2,048, checkpointed, chunked loss, compiled",
        _FIRST_TABLE,
        7.4 * GIB,
        "llama3.1-8b/qlora",
        _lines(
            "adapter.r=8",
            "adapter.alpha=16",
            f"adapter.target_modules=[q_proj, k_proj, v_proj, o_proj, {_MLP}]",
            _CHUNKED,
        ),
        "RTX 4090",
        f"compiled; NF4 of torchao; {_BFLOAT16_ADAPTER}{_WHOLE_LOGITS}whether the peak is of active, allocated or "
        "reserved bytes is not said",
    ),
    RecipeCase(
        "torchtune, Llama-3.1-8B, LoRA on q and v, 2 x 2,048, checkpointed, chunked loss, compiled",
        _FIRST_TABLE,
        16.2 * GIB,
        "llama3.1-8b/lora",
        _lines("adapter.r=8", "adapter.alpha=16", "adapter.target_modules=[q_proj, v_proj]", _CHUNKED),
        "RTX 4090",
        f"compiled; {_BFLOAT16_ADAPTER}{_WHOLE_LOGITS}which peak it is, is not said; that the row is checkpointed is "
        "the default of their configuration",
    ),
    RecipeCase(
        "torchtune, Llama-3.2-3B, full, 2 x 4,096 packed",
        _LADDER,
        60.0 * GIB,
        "llama3.2-1b/full",
        _lines("model.id=meta-llama/Llama-3.2-3B", "train.gradient_checkpointing=false", _WHOLE, *_FULL_3B),
        "A100 80GB SXM",
        "their model, transformers' here; AdamW, whether fused is not said",
    ),
    RecipeCase(
        "torchtune, Llama-3.2-3B, full, 2 x 4,096 packed, compiled, chunked loss",
        _LADDER,
        42.9 * GIB,
        "llama3.2-1b/full",
        _lines("model.id=meta-llama/Llama-3.2-3B", "train.gradient_checkpointing=false", _CHUNKED, *_FULL_3B),
        "A100 80GB SXM",
        f"compiled, which alone saved 9.0 GiB of 60.0; {_WHOLE_LOGITS}their model, transformers' here",
    ),
    RecipeCase(
        "torchtune, Llama-3.2-3B, full, 2 x 4,096 packed, compiled, chunked loss, checkpointed",
        _LADDER,
        24.9 * GIB,
        "llama3.2-1b/full",
        _lines("model.id=meta-llama/Llama-3.2-3B", "train.gradient_checkpointing=true", _CHUNKED, *_FULL_3B),
        "A100 80GB SXM",
        f"compiled; {_WHOLE_LOGITS}their model, transformers' here",
    ),
    RecipeCase(
        "torchtune, Llama-3.2-3B, LoRA r=64, 2 x 4,096 packed, compiled, chunked loss, checkpointed, offloaded",
        _LADDER,
        8.5 * GIB,
        "llama3.2-3b/lora",
        _lines(f"adapter.target_modules=[q_proj, v_proj, o_proj, {_MLP}]", _OFFLOADED, *_ADAPTED_3B),
        "A100 80GB SXM",
        f"their offloading, TRL's here; compiled; {_BFLOAT16_ADAPTER}{_WHOLE_LOGITS[:-2]}",
    ),
    RecipeCase(
        "torchtune, Llama-3.2-3B, QLoRA r=64, 2 x 4,096 packed, compiled, chunked loss, checkpointed, offloaded",
        _LADDER,
        4.6 * GIB,
        "llama3.2-3b/qlora",
        _lines(f"adapter.target_modules=[q_proj, v_proj, o_proj, {_MLP}]", _OFFLOADED, *_ADAPTED_3B),
        "A100 80GB SXM",
        f"their offloading, TRL's here; compiled; NF4 of torchao; {_BFLOAT16_ADAPTER}{_WHOLE_LOGITS[:-2]}",
    ),
    RecipeCase(
        "QLoRA, LLaMA-65B, r=64 on all layers, 1 x 528, checkpointed, paged AdamW",
        f"{_QLORA}/README.md",
        48e9,
        "llama3.1-8b/qlora",
        _lines(
            "train.max_length=528",
            "train.per_device_train_batch_size=1",
            "train.gradient_accumulation_steps=16",
            "train.optim=paged_adamw_32bit",
            "adapter.r=64",
            "adapter.alpha=16",
            "adapter.dropout=0.05",
        ),
        "RTX A6000",
        "the source says that a GPU of 48 GB is enough, and its script (scripts/finetune_guanaco_65b.sh) the settings; "
        "predicted without the context and the paged state; transformers and PEFT of 2023",
        bound=True,
        config=LLAMA_65B,
    ),
    *(_longest(gpu, *held) for gpu, held in LONGEST.items()),
    _answer_ai("LoRA", 1, 2048, 9.16, reserved=False),
    _answer_ai("LoRA", 4, 2048, 16.14),
    _answer_ai("QLoRA", 4, 2048, 11.22),
    _answer_ai("LoRA", 4, 2048, 22.04, ddp=True),
    _answer_ai("QLoRA", 8, 2048, 20.94, ddp=True),
    _answer_ai("QLoRA", 10, 2048, 20.97),
    _answer_ai("LoRA", 6, 2048, 21.35),
    _answer_ai("LoRA", 1, 512, 8.28, reserved=False),
    _answer_ai("LoRA", 1, 2048, 10.22),
    _answer_ai("QLoRA", 1, 2048, 5.21),
    _answer_ai("QLoRA", 1, 512, 4.98),
)

HEADS: tuple[HeadCase, ...] = (
    HeadCase(4096, 6092.2822265625 * 2**20),
    HeadCase(8192, 9162.3134765625 * 2**20),
    HeadCase(16384, 15302.3759765625 * 2**20),
    HeadCase(32768, 27582.5 * 2**20),
)
"""Liger-Kernel 0.4.2, A100-SXM4-80GB, 2024-11-22, provider ``huggingface``: torch's linear layer and cross-entropy.

Its script (benchmark/scripts/benchmark_fused_linear_cross_entropy.py) has two such heads on the device, and uses one.
"""

NOT_COMPARED: Mapping[str, str] = {
    "Answer.AI, Yi-34B, Llama-2-70B, and weights on the host": "not tried yet",
    "PEFT's documentation, Llama-2-70B on 2 and 8 GPUs": "memory by nvidia-smi, in a screenshot; not tried yet",
    "Qwen's README, 1.8B to 72B": "an architecture that transformers does not have, and GPTQ",
    "LitGPT, Llama-2-7B and 13B": "model code of its own, which keeps other activations than transformers'",
    "ms-swift, yi-6b, zephyr-7b and yi-34b": "the lengths of its batches are not said",
    "NeMo AutoModel, torchtitan, MLPerf": "kernels of Transformer Engine, FP8 or tensor parallelism",
    "LLaMA-Factory's table, Llama-2-7B": "rows of Alpaca, whose lengths are not said",
    "Axolotl, Ministral-8B and AFM-4.5B": "cut cross-entropy, and a GPU that is not named",
    "torchtune, 8B full fine-tuning, 18.9 GiB": "the optimizer steps inside the backward, which is not planned",
    "torchtune, 8B on an A6000, 37.4 and 30.3 GiB": "how they differ from the rows of the 4090 is not said",
    "torchtune, 3B, 25.5 GiB, not packed": "the lengths of its batches are not said",
    "torchtune, 3B, 51.0 GiB, compiled": "torch.compile is not planned, and that is all that the row adds",
    "torchtune, 3B, 23.1, 21.8 and 17.6 GiB": "the optimizer steps inside the backward, which is not planned",
    "torchtune, 70B and 405B on 8 A100": "several GPUs",
    "Liger-Kernel's README, LLaMA-3-8B on 8 A100": "several GPUs; a chart without numbers",
    "Liger-Kernel's fused head, 4,245.5 to 5,794.6 MB": "a version of 2024; its kernels are planned as of 0.6",
    "TRL's memory guide, about 30% less for Qwen3-1.7B with a chunked loss": "batch and lengths are not in the guide",
}


console = Console()


def main() -> None:
    """Plan all cases, print and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every case")
    parser.add_argument("--only", default="", metavar="WORDS", help="recipes whose name has these words")
    options = parser.parse_args()
    quieten_libraries(debug=False)
    started = datetime.datetime.now(datetime.timezone.utc)
    found: list[dict[str, Any]] = []
    for case in RECIPES:
        if options.only in case.name:
            found.append(planned(case))
            console.print(f"{case.name}: {found[-1]['ratio']:.3f}", highlight=False)
    found += map(simulated_head, () if options.only else HEADS)
    console.print(_table(found))
    for what, why in NOT_COMPARED.items():
        console.print(f"not compared: {what}: {why}", highlight=False)
    if options.json is not None:
        write_result(options.json, "published", started, {"found": found, "not_compared": dict(NOT_COMPARED)})


def planned(case: RecipeCase) -> dict[str, Any]:
    """The plan of a recipe against the figure."""
    with tempfile.TemporaryDirectory() as folder, loss_of(LIGER_TABLE) if case.loss_of_2024 else nullcontext():
        made = plan(recipe_of(case, Path(folder)), [case.gpu])
    gpu = made.gpus[0]
    counted = (gpu.reserved_bytes or gpu.needed_bytes) if case.reserved else made.memory.peak_allocated_bytes
    told = _compared(case.name, case.source, case.published_bytes, counted)
    kinds = {name: size for name, size in made.memory.categories.items() if size}
    more = {"predicted_needed_bytes": gpu.needed_bytes, "predicted_categories": kinds, "case": asdict(case)}
    return {**told, "bound": case.bound, "differs": case.differs, **more}


def recipe_of(case: RecipeCase, folder: Path) -> Recipe:
    """The shipped recipe as the case has it; ``folder`` takes a model's configuration where it needs one."""
    own: tuple[str, ...] = ()
    if case.config is not None:
        (folder / "config.json").write_text(json.dumps(dict(case.config)))
        own = (f"model.id={folder}",)
    return load_recipe(case.recipe, [*case.overrides, *own])


def simulated_head(case: HeadCase) -> dict[str, Any]:
    """The peak of a head and its loss: forward and backward, for a second time, so that gradients are there."""
    log = TensorLog()
    heads = [blank(case.vocabulary, case.hidden, dtype=torch.bfloat16).requires_grad_() for _ in range(2)]
    values = blank(case.tokens, case.hidden, dtype=torch.bfloat16).requires_grad_()
    labels = torch.zeros(case.tokens, dtype=torch.int64)
    for tensor in (*heads, values, labels):
        log.add(tensor, "", "weights")
    with log:
        for _ in range(2):
            functional.cross_entropy(functional.linear(values, heads[0]), labels).backward()
    peak = find_peak(log)
    name = (
        f"Liger-Kernel's benchmark, head of {case.vocabulary:,} x {case.hidden:,}, {case.tokens:,} tokens, torch's loss"
    )
    differs = "two workspaces of cuBLAS, 16.25 MiB; a second head lies on the device there and here, and is not used"
    told = _compared(name, case.source, case.published_bytes, peak.bytes)
    return {**told, "bound": False, "differs": differs, "case": asdict(case)}


def _compared(name: str, source: str, published: float, predicted: int) -> dict[str, Any]:
    ratio = predicted / published
    return {"name": name, "source": source, "published_bytes": published, "predicted_bytes": predicted, "ratio": ratio}


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("setting", "published", "predicted", "ratio", "what differs", box=None)
    for one in found:
        table.add_row(
            one["name"],
            ("< " if one["bound"] else "") + _gib(one["published_bytes"]),
            _gib(one["predicted_bytes"]),
            f"{one['ratio']:.2f}",
            one["differs"],
        )
    return table


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


if __name__ == "__main__":
    main()
