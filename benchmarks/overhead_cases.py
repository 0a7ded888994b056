"""What the overhead is measured on: models, data, and how many steps make a measurement."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = ["CASES", "Case", "Target"]


@dataclass(frozen=True)
class Target:
    """What is promised of ``EfficientTrainer``.

    Attributes:
        measure: ``ratio`` of step times, or ``added_us`` (microseconds) per optimizer step.
        most: the largest figure that keeps the promise; a ratio counts from 1.
    """

    measure: Literal["ratio", "added_us"]
    most: float


@dataclass(frozen=True)
class Case:
    """One model, and how it is trained.

    Attributes:
        name: as ``--only`` takes it.
        what: model, method and batch, in words.
        build: makes the model, on the CPU.
        vocabulary: token ids are below this.
        batch: rows per step.
        tokens: tokens per row; all rows are of this length, so that all steps are the same work.
        arguments: of ``TrainingArguments``, beside what all cases share.
        threads: that torch computes with; None: as many as it takes by itself.
        skip: steps at the start of a block that are not measured.
        steps: steps of a block that are.
        rounds: how often each arm trains a block in one process; None where the arms take turns, a step each, in one
            block of ``steps`` steps.
        process_steps: steps that are measured in a process of its own.
        process_rounds: how often each arm trains in one.
        target: what is promised; None: nothing, the figure is told.
        logging_steps: every how many steps a log is written; 500 is transformers' default.
    """

    name: str
    what: str
    build: Callable[[], Any]
    vocabulary: int
    batch: int
    tokens: int
    arguments: dict[str, Any]
    threads: int | None
    skip: int
    steps: int
    rounds: int | None
    process_steps: int
    process_rounds: int
    target: Target | None
    logging_steps: int = 500

    @property
    def device(self) -> str:
        """``cpu`` or ``cuda``."""
        return "cpu" if self.arguments.get("use_cpu") else "cuda"


def _llama(width: int, layers: int) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def _smollm2() -> Any:
    from hf_efficient.model.adapter import add_adapter
    from hf_efficient.model.load import load_base
    from hf_efficient.recipe.load import load_recipe

    recipe = load_recipe("quickstart/lora")
    return add_adapter(load_base(recipe), recipe.adapter, seed=42, checkpointing=False)


def _llama_1b() -> Any:
    """The shapes of Llama-3.2-1B (its published config.json), random weights."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=131072,
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config)
    lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
    return get_peft_model(model.to(torch.bfloat16), lora)


_TINY = Case(
    name="tiny",
    what="Llama of 2 layers, width 32, random weights; full fine-tune in float32 on the CPU; 2 x 16 tokens",
    build=lambda: _llama(32, 2),
    vocabulary=256,
    batch=2,
    tokens=16,
    arguments={"use_cpu": True},
    threads=1,
    skip=20,
    steps=500,
    rounds=40,
    process_steps=1000,
    process_rounds=12,
    target=Target("added_us", 200.0),  # 1% of a step of 20 ms, 0.1% of one of 200 ms
)

CASES = {
    case.name: case
    for case in (
        _TINY,
        replace(
            _TINY,
            name="short",
            what="Llama of 4 layers, width 128, random weights; full fine-tune in float32 on the CPU; 4 x 64 tokens",
            build=lambda: _llama(128, 4),
            batch=4,
            tokens=64,
            steps=1500,
            rounds=None,
            process_rounds=0,
            target=Target("ratio", 1.01),
        ),
        replace(
            _TINY,
            name="tiny_logs",
            what="the same, with a log every ten steps",
            rounds=20,
            process_rounds=0,
            target=None,
            logging_steps=10,
        ),
        Case(
            name="smollm2",
            what="SmolLM2-135M, LoRA as in the recipe quickstart/lora, float32 base on the CPU; 2 x 256 tokens",
            build=_smollm2,
            vocabulary=49152,
            batch=2,
            tokens=256,
            arguments={"use_cpu": True},
            threads=None,
            skip=4,
            steps=200,
            rounds=None,
            process_steps=20,
            process_rounds=8,
            target=Target("ratio", 1.01),
            logging_steps=10,
        ),
        Case(
            name="gpu",
            what="shapes of Llama-3.2-1B, random weights, LoRA r 16, bfloat16 base on a GPU; 4 x 1024 tokens",
            build=_llama_1b,
            vocabulary=128256,
            batch=4,
            tokens=1024,
            arguments={"optim": "adamw_torch_fused"},
            threads=None,
            skip=5,
            steps=50,
            rounds=18,
            process_steps=200,
            process_rounds=8,
            target=Target("ratio", 1.005),
            logging_steps=10,
        ),
    )
}
