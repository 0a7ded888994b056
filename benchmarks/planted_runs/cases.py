"""What a planted run is, and the list that each adds itself to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Setup:
    """What the process of a run is told.

    Attributes:
        folder: output directory.
        corpus: folder that ``corpus.py`` has filled.
        server: ``HOST:PORT`` of ``server.py``.
        overrides: the change that a remedy makes, by dotted key of a recipe.
        mended: the run without its fault, for faults that no recipe mends.
    """

    folder: Path
    corpus: Path
    server: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    mended: bool = False

    def override(self, key: str, default: Any) -> Any:
        """What a remedy sets, or else what the run has by itself."""
        return self.overrides.get(key, default)


@dataclass(frozen=True)
class PlantedCase:
    """A run with a cause.

    Attributes:
        name: as ``--only`` takes it.
        what: is wrong, in words.
        expected: rules whose finding may stand first; empty: a healthy run.
        build: makes its trainer.
        ranks: processes that train together.
        busy_cores: processes that compute beside it for as long as it runs, and belong to somebody else.
        environment: of the process.
        code_remedy: what ``Setup.mended`` changes, in words; empty where only a recipe mends it, or nothing.
    """

    name: str
    what: str
    expected: tuple[str, ...]
    build: Callable[[Setup], Any]
    ranks: int = 1
    busy_cores: int = 0
    environment: Mapping[str, str] = field(default_factory=dict)
    code_remedy: str = ""

    @property
    def is_healthy(self) -> bool:
        """Whether there is nothing to find."""
        return not self.expected


CASES: dict[str, PlantedCase] = {}
"""By name, in the order of their files."""


def planted(what: str, *expected: str, **fields: Any) -> Callable[[Callable[[Setup], Any]], Callable[[Setup], Any]]:
    """Enter a function that builds a trainer as the case of its name.

    Args:
        what: is wrong, in words.
        expected: names of rules, any of which may stand first; none: a healthy run.
        fields: others of ``PlantedCase``.
    """

    def enter(build: Callable[[Setup], Any]) -> Callable[[Setup], Any]:
        name = build.__name__
        CASES[name] = PlantedCase(name, what, expected, build, **fields)
        return build

    return enter


__all__: list[str] = []


@planted("each row is read from a store that answers after 20 ms", "data_storage")
def slow_storage(setup: Setup) -> Any:
    from planted_runs.data import StoredRows
    from planted_runs.training import trainer

    return trainer(setup, data=StoredRows(setup.server, 1000, 0.020))


@planted(
    "whole documents are tokenised in __getitem__ and cut afterwards",
    "data_transform",
    code_remedy="rows that were tokenised before the training",
)
def tokenised_on_access(setup: Setup) -> Any:
    from planted_runs.data import TokenisedOnAccess
    from planted_runs.training import rows_trainer, trainer

    return rows_trainer(setup) if setup.mended else trainer(setup, data=TokenisedOnAccess(setup.corpus))


@planted("an augmentation in Python, in the process that trains", "data_transform", "few_workers")
def heavy_transform(setup: Setup) -> Any:
    from planted_runs.data import Typos
    from planted_runs.training import trainer

    return trainer(setup, data=Typos(setup.corpus, characters=1_200))


@planted("one worker reads from a store that answers after 60 ms", "few_workers", "data_storage")
def one_worker(setup: Setup) -> Any:
    from planted_runs.data import StoredRows
    from planted_runs.training import trainer

    return trainer(setup, data=StoredRows(setup.server, 1000, 0.060), dataloader_num_workers=1)


@planted(
    "the collator tokenises whole documents and cuts them afterwards",
    "data_collation",
    code_remedy="rows that were tokenised before the training",
)
def slow_collator(setup: Setup) -> Any:
    from planted_runs.data import Documents, TokenisesBatches
    from planted_runs.training import rows_trainer, trainer

    if setup.mended:
        return rows_trainer(setup)
    few = Documents(setup.corpus, 4)
    collator = TokenisesBatches(setup.corpus)
    return trainer(setup, data=Documents(setup.corpus), eval_dataset=few, data_collator=collator)


@planted("workers are spawned anew for every epoch of twelve steps", "worker_start")
def workers_each_epoch(setup: Setup) -> Any:
    from planted_runs.data import Rows
    from planted_runs.training import trainer

    return trainer(
        setup,
        data=Rows(setup.corpus, 48),
        eval_strategy="no",
        num_train_epochs=4,
        max_steps=-1,
        dataloader_num_workers=2,
        dataloader_multiprocessing_context="spawn",
    )


@planted(
    "compute_loss reads scalars of its tensors in every step, at four places",
    "hidden_synchronisation",
    code_remedy="no scalar is read",
)
def scalars_read(setup: Setup) -> Any:
    from planted_runs.training import ReadsScalars, rows_trainer

    return rows_trainer(setup) if setup.mended else rows_trainer(setup, base=ReadsScalars)


@planted("the layers multiply in the dtype that this CPU is slow in", "float32_products", "emulated_bfloat16")
def slow_dtype(setup: Setup) -> Any:
    from hf_efficient.profilers.calibration import cpu_is_faster_in_float32
    from planted_runs.training import rows_trainer, small_llama

    if cpu_is_faster_in_float32():
        return rows_trainer(setup, bf16=True, max_steps=30)
    wide = small_llama(setup, hidden_size=512, intermediate_size=1536, num_attention_heads=8)
    return rows_trainer(setup, model=wide, bf16=False, max_steps=30)


@planted("one example per step", "small_micro_batch")
def tiny_batch(setup: Setup) -> Any:
    from planted_runs.data import Examples, Padding
    from planted_runs.training import trainer

    data = Examples(setup.corpus, 4000)
    return trainer(setup, data=data, data_collator=Padding(), per_device_train_batch_size=1, max_steps=240)


@planted("16 micro-batches of one example make a step", "accumulation", "small_micro_batch")
def accumulated(setup: Setup) -> Any:
    from planted_runs.data import Examples, Padding
    from planted_runs.training import trainer

    return trainer(
        setup,
        data=Examples(setup.corpus, 4000),
        data_collator=Padding(),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=16,
        max_steps=20,
    )


@planted("every eighth example is six times as long as the others", "padding_waste")
def mixed_lengths(setup: Setup) -> Any:
    from planted_runs.data import Examples, Padding
    from planted_runs.training import trainer

    data = Examples(setup.corpus, 2000, long_every=8)
    return trainer(setup, data=data, data_collator=Padding(), per_device_train_batch_size=8, max_steps=40)


@planted("activation checkpointing, though the memory is idle", "checkpointing_unneeded")
def checkpointing(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, activation_checkpointing=True)


@planted("eager attention over rows of 1024 tokens", "attention_kernel")
def eager_attention(setup: Setup) -> Any:
    from planted_runs.data import Rows
    from planted_runs.training import small_llama, trainer

    model = small_llama(setup, attn_implementation="eager", num_attention_heads=8)
    data = Rows(setup.corpus, join=8)
    return trainer(setup, data=data, model=model, per_device_train_batch_size=1, max_steps=30)


@planted("AdamW goes through a large embedding parameter by parameter, not fused", "optimizer_kernel")
def slow_optimizer(setup: Setup) -> Any:
    from planted_runs.data import Rows
    from planted_runs.training import rows_trainer, small_llama

    large = small_llama(setup, vocab_size=48_000, tie_word_embeddings=False)
    few = Rows(setup.corpus, 4)
    fields = {"per_device_train_batch_size": 1, "max_steps": 40, "eval_dataset": few}
    return rows_trainer(setup, model=large, optim="adamw_torch", **fields)


@planted("the logits of every step are kept in a list", "memory_growth", code_remedy="nothing is kept")
def leak(setup: Setup) -> Any:
    from hf_efficient.trainer import EfficientTrainer
    from planted_runs.training import KeepsLogits, rows_trainer

    base = EfficientTrainer if setup.mended else KeepsLogits
    return rows_trainer(setup, base=base, max_steps=160)  # so that memory is read some dozen times


@planted("a checkpoint after every second step", "saves_cost")
def saves_too_often(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, save_steps=2, save_total_limit=2, per_device_train_batch_size=2)


@planted("an evaluation after every third step", "evaluations_cost")
def evaluations_too_often(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, eval_steps=3)


@planted("an evaluation on more rows than are trained on", "evaluations_cost")
def evaluation_too_large(setup: Setup) -> Any:
    from planted_runs.data import Rows
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, eval_dataset=Rows(setup.corpus, 600, skip=1000), eval_steps=30)


@planted("every step is logged, to a tracker that answers after 100 ms", "logging_cost")
def slow_logging(setup: Setup) -> Any:
    from planted_runs.training import Tracker, rows_trainer

    return rows_trainer(setup, logging_steps=1, callbacks=[Tracker(setup.server, 0.100)])


@planted("one of two ranks takes twice as long", "straggler", ranks=2, environment={"OMP_NUM_THREADS": "1"})
def slow_rank(setup: Setup) -> Any:
    from planted_runs.training import SlowRank, rows_trainer

    return rows_trainer(setup, base=SlowRank, max_steps=30)


@planted(
    "another user's processes compute on every core", "cpu_contention", busy_cores=2, code_remedy="nobody else computes"
)
def busy_cores(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, max_steps=40)


@planted("torch computes with 16 threads on two cores", "cpu_oversubscription", code_remedy="a thread per core")
def too_many_threads(setup: Setup) -> Any:
    import torch

    from planted_runs.training import rows_trainer

    if not setup.mended:
        torch.set_num_threads(16)
    return rows_trainer(setup, max_steps=40)


@planted("labels are masked but for one token in sixty-four", "masked_labels", "few_loss_tokens")
def masked(setup: Setup) -> Any:
    from planted_runs.data import MaskedRows
    from planted_runs.training import trainer

    return trainer(setup, data=MaskedRows(setup.corpus))


@planted("a learning rate of a billionth", "learning_rate_idle")
def idle_learning_rate(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, learning_rate=1e-9)


@planted("a learning rate at which the loss grows", "learning_rate_diverges")
def diverging(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup, learning_rate=0.3, logging_steps=2)


@planted("batches without a label give a loss that is no number, and their steps are skipped", "not_finite_steps")
def nan_steps(setup: Setup) -> Any:
    from planted_runs.data import SomeUnlabelled
    from planted_runs.training import SkipsNaN, trainer

    return trainer(
        setup, data=SomeUnlabelled(setup.corpus), base=SkipsNaN, per_device_train_batch_size=1, max_steps=150
    )


@planted("most examples are longer than max_length, and are cut", "truncated_examples")
def truncated(setup: Setup) -> Any:
    from planted_runs.supervised import sft_trainer

    return sft_trainer(setup, max_length=48, per_device_train_batch_size=16)


@planted("a layer is trained that the forward never calls", "no_gradient")
def unused_layer(setup: Setup) -> Any:
    import torch

    from planted_runs.training import rows_trainer, small_llama

    model = small_llama(setup)
    model.second_head = torch.nn.Linear(256, 4096)
    return rows_trainer(setup, model=model, check_gradients=False)


@planted("healthy: full fine-tune of rows of one length")
def healthy_full(setup: Setup) -> Any:
    from planted_runs.training import rows_trainer

    return rows_trainer(setup)


@planted("healthy: LoRA on all linear layers")
def healthy_lora(setup: Setup) -> Any:
    from peft import LoraConfig, get_peft_model

    from planted_runs.training import rows_trainer, small_llama

    lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32, target_modules="all-linear")
    return rows_trainer(setup, model=get_peft_model(small_llama(setup), lora))


@planted("healthy: supervised fine-tuning, packed")
def healthy_packed(setup: Setup) -> Any:
    from planted_runs.supervised import sft_trainer

    return sft_trainer(setup, packing=True, max_length=128, per_device_train_batch_size=4)


@planted("healthy: examples of like length together")
def healthy_grouped(setup: Setup) -> Any:
    from planted_runs.data import Examples, Padding
    from planted_runs.training import trainer

    return trainer(
        setup,
        data=Examples(setup.corpus, 4000),
        data_collator=Padding(),
        train_sampling_strategy="group_by_length",
        per_device_train_batch_size=8,
    )


@planted("healthy: two workers read from a store beside the training")
def healthy_workers(setup: Setup) -> Any:
    from planted_runs.data import StoredRows
    from planted_runs.training import trainer

    return trainer(setup, data=StoredRows(setup.server, 1000, 0.005), dataloader_num_workers=2)
