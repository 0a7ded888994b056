"""A Trainer that never saw a recipe to its plan: its own loss, collator and optimizer, on a model without values."""

import copy
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import numpy as np
import torch
from torch import nn
from transformers import DefaultFlowCallback, PreTrainedModel, Trainer, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from hf_efficient.errors import SetupError, first_line
from hf_efficient.facts.tables import names_cpu
from hf_efficient.planning.arguments import collector_paused, own_arguments, process_kept, stand_in
from hf_efficient.planning.batches import Lengths, RunRows, RunShapes, planned_rows, run_shapes
from hf_efficient.planning.blank_model import blank_quantized
from hf_efficient.planning.gpu import demand_of
from hf_efficient.planning.plan import devices_of, plan_of, shape_remarks
from hf_efficient.planning.plan import plan as plan_recipe
from hf_efficient.planning.ranks.rank import spread
from hf_efficient.planning.ranks.shares import sharding_of
from hf_efficient.planning.simulated_trainer import HeadOfAGpu, is_evaluated
from hf_efficient.planning.simulation import Simulation, simulation_of
from hf_efficient.recipe.schema import Recipe, mixed_precision
from hf_efficient.records.plan import Plan
from hf_efficient.simulate.blank import emptied

_TOKENS = (("input_ids",), ("prompt_ids", "chosen_ids", "rejected_ids"), ("chosen_ids", "rejected_ids"))
"""Columns of rows that are tokenised: a text each, or a preference pair."""
_MOST_COLLATED = 4096
"""Rows that the trainer's collator is asked for, where they are not tokenised."""
_FIELDS = (
    *("bf16", "fp16", "optim", "max_steps", "gradient_accumulation_steps", "torch_compile", "activation_offloading"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "precompute_ref_log_probs"),
    *("save_strategy", "eval_strategy", "eval_on_start"),
)
"""Of the trainer's arguments, what a plan reads where a recipe has ``train``."""


def plan(
    what: Recipe | Trainer,
    gpus: str | Sequence[str] | None = None,
    *,
    num_gpus: int | None = None,
    read_data: bool = True,
) -> Plan:
    """Memory, time and cost of a recipe, or of a Trainer before its ``train()``, which stays as it is.

    ``gpus``: names of accelerators, as ``hf-efficient plan --gpu`` takes them, or ``cpu`` for this machine's; default:
    all that are known. ``num_gpus``: GPUs that train; default: the recipe's, or the processes that the Trainer was
    started in. ``read_data``: of a recipe: read its data where they are on this machine. Raises ``SetupError``: an
    accelerator that nobody knows, or a Trainer that cannot be planned; says which and why."""
    if isinstance(what, Recipe):
        return plan_recipe(what, gpus, num_gpus=num_gpus, read_data=read_data)
    if not isinstance(what, Trainer):
        raise SetupError(
            f"plan: takes a Trainer or a recipe, not {type(what).__name__}. "
            'Write plan(trainer), or plan(load_recipe("llama3.1-8b/qlora")).'
        )
    devices = devices_of(gpus)
    ranks = what.args.world_size if num_gpus is None else num_gpus
    if ranks < 1:
        raise SetupError(f"num_gpus: {num_gpus} cannot train. Write the number of GPUs, 1 or more.")
    on_gpu = not names_cpu(gpus)
    if ranks > 1 and not on_gpu:
        raise SetupError(f"cpu: is planned for one process, not for {ranks}. Leave num_gpus out.")
    _check_simulated(what)
    recipe = _as_recipe(what, ranks)
    rows = _lengths(what, recipe)
    shapes = run_shapes(_with_rows(what, rows), rows, ranks, at_end=False)
    simulation = _simulation(what, recipe, rows, shapes, on_gpu)
    simulation = spread(simulation, sharding_of(recipe, ranks), mixed=mixed_precision(recipe) != "no")
    demand = demand_of(recipe, simulation, shapes, ranks)
    remarks = [*shape_remarks(shapes), *_remarks(what, recipe)]
    planned = planned_rows(rows.train, 0 if rows.evaluation is None else len(rows.evaluation), shapes)
    return plan_of(recipe, simulation, demand, devices, remarks, planned)


def check_untrained(trainer: Trainer, caller: str) -> None:
    """``SetupError``, in the name of ``caller``: it has trained, or has no data or no model of transformers."""
    model: Any = trainer.model
    if not isinstance(getattr(model, "get_base_model", lambda: model)(), PreTrainedModel):
        kind = type(model).__name__
        raise SetupError(f"{caller}: the model is {kind}, and must be one of transformers, or PEFT on one.")
    if trainer.state.global_step > 0 or trainer.model_wrapped is not model:
        raise SetupError(f"{caller}: this trainer has trained already. Call it before train(), or on a new one.")
    if trainer.train_dataset is None:
        raise SetupError(f"{caller}: the trainer has no train_dataset, so that the length of its rows is not known.")


def _check_simulated(trainer: Trainer) -> None:
    """``SetupError`` for a trainer whose step cannot be simulated, with what to do instead."""
    check_untrained(trainer, "plan")
    args = trainer.args
    for name, strategy in (("deepspeed", "zero3"), ("fsdp", "fsdp2")):
        if getattr(args, name, None):
            raise SetupError(
                f"plan: {name} is set, and of a Trainer one GPU and DDP can be planned. Leave {name} out for the plan, "
                f"or plan a recipe of the same model with distributed.strategy={strategy}."
            )
    if getattr(args, "use_liger_kernel", None):
        raise SetupError("plan: Liger's kernels cannot be simulated. Leave use_liger_kernel out for the plan.")
    if hasattr(trainer, "_generate_and_score_completions"):
        kind = next(kind.__name__ for kind in type(trainer).__mro__ if kind.__module__.startswith("trl."))
        raise SetupError(
            f"plan: {kind} trains on completions that it generates, and cannot be simulated. "
            "Train a few steps, and read their account."
        )


def saves_of(trainer: Trainer) -> int | None:
    rows = _lengths(trainer, _as_recipe(trainer, 1))
    return run_shapes(_with_rows(trainer, rows), rows, 1, at_end=False).saves


def _as_recipe(trainer: Trainer, ranks: int) -> Recipe:
    args, model = trainer.args, cast(PreTrainedModel, trainer.model)
    held = {name: getattr(args, name) for name in _FIELDS if hasattr(args, name)}
    bits = next((bits for bits in (4, 8) if getattr(model, f"is_loaded_in_{bits}bit", False)), None)
    method = "qlora" if bits else "lora" if hasattr(model, "peft_config") else "full"
    pairs = "chosen_ids" in _columns(trainer.train_dataset)
    return Recipe(
        name=type(trainer).__name__,
        objective="dpo" if pairs else "sft",
        model={"id": model.config.name_or_path or type(model).__name__},
        adapter={"method": method, "quantization": {"bits": bits} if bits else None},
        data={
            "train": [{"path": "train_dataset"}],
            "eval": [] if trainer.eval_dataset is None else [{"path": "eval_dataset"}],
        },
        train={name: getattr(value, "value", value) for name, value in held.items()},  # of enumerations
        distributed={"processes": ranks},
        evaluate={"at_end": False},
        output_dir=str(args.output_dir),
    )


def _with_rows(trainer: Trainer, rows: RunRows) -> Any:
    args = copy.copy(trainer.args)
    for phase, held in (("train", rows.train), ("eval", rows.evaluation)):
        if held is not None:
            name = f"per_device_{phase}_batch_size"
            setattr(args, name, min(getattr(args, name), len(held)))
    return args


def _columns(dataset: Any) -> Sequence[str]:
    names = getattr(dataset, "column_names", None)
    return names if names is not None else list(next(iter(dataset), {}))


def _token_columns(dataset: Any) -> tuple[str, ...] | None:
    return next((names for names in _TOKENS if set(names) <= set(_columns(dataset))), None)


def _lengths(trainer: Trainer, recipe: Recipe) -> RunRows:
    held = evaluation_data(trainer) if is_evaluated(recipe) else None
    return RunRows(
        row_lengths(trainer, trainer.train_dataset, "train_dataset"),
        None if held is None else row_lengths(trainer, held, "eval_dataset"),
    )


def evaluation_data(trainer: Trainer) -> Any:
    """The largest where there are several."""
    held = trainer.eval_dataset
    return max(held.values(), key=len) if isinstance(held, dict) else held


def row_lengths(trainer: Trainer, dataset: Any, name: str) -> Lengths:
    """Tokens of each row, shape (rows,); of the answers of pairs, shape (rows, 2)."""
    if not hasattr(dataset, "__len__") or not len(dataset):
        raise SetupError(f"plan: {name} must have a length of at least one row, so that the longest can be found.")
    known = _token_columns(dataset)
    if known is None:
        return _collated_sizes(trainer, dataset, name)
    each = {column: _row_sizes(dataset, column) for column in known}
    if known == ("input_ids",):
        return each["input_ids"]
    prompt, cut = each.get("prompt_ids", 0), getattr(trainer.args, "max_length", None)
    both = np.stack([prompt + each["chosen_ids"], prompt + each["rejected_ids"]], axis=1)
    return both if cut is None else np.minimum(both, cut)


def _collated_sizes(trainer: Trainer, dataset: Any, name: str) -> Lengths:
    """Of rows that the trainer's collator tokenises. Of many, evenly spaced ones stand for those that follow them."""
    places = np.arange(0, len(dataset), math.ceil(len(dataset) / _MOST_COLLATED))
    try:
        with process_kept():  # a collator may draw
            shapes = [tuple(trainer.data_collator([dataset[int(place)]])["input_ids"].shape) for place in places]
        if {rows for rows, _ in shapes} != {1}:
            raise ValueError("input_ids of one row must have the shape (1, tokens)")
    except Exception as error:
        raise SetupError(
            f"plan: the rows of {name} have {', '.join(_columns(dataset)) or 'no columns'} and no input_ids, and the "
            f"trainer's collator makes none of them ({type(error).__name__}: {first_line(error)}). Tokenise the rows, "
            "or give the trainer a data_collator that does; a model without input_ids cannot be planned."
        ) from error
    sizes = np.array([tokens for _, tokens in shapes], dtype=np.int64)
    return np.repeat(sizes, np.diff([*places, len(dataset)]))


def _row_sizes(dataset: Any, column: str) -> Lengths:
    if type(dataset).__module__.startswith("datasets."):  # which the core does not install
        from hf_efficient.data.stats import lengths

        return lengths(dataset, column)
    return np.array([len(dataset[place][column]) for place in range(len(dataset))], dtype=np.int64)


def _simulation(trainer: Trainer, recipe: Recipe, rows: RunRows, shapes: RunShapes, on_gpu: bool) -> Simulation:
    model, sizes = cast(PreTrainedModel, trainer.model), _with_rows(trainer, rows)
    batch = {name: getattr(sizes, name) for name in ("per_device_train_batch_size", "per_device_eval_batch_size")}
    unused = trainer.args.remove_unused_columns
    with process_kept(), collector_paused(), tempfile.TemporaryDirectory() as directory:
        try:
            args = own_arguments(trainer.args, directory, **batch, remove_unused_columns=unused)
            blank, reference, optimizer = _blank_copies(trainer, model, quantized=recipe.adapter.method == "qlora")
            made = untrained_copy(trainer, _SimulatedSteps, args, blank)
            if reference is not None:
                made.ref_model = reference
            made.optimizer, made.neftune_noise_alpha = optimizer or stand_in(recipe, blank), None
            each = args.per_device_train_batch_size
            count = 2 * args.gradient_accumulation_steps * each
            made.train_dataset = list(batch_rows(trainer.train_dataset, rows.train, each, count))
            if shapes.evaluation is not None:
                made.evaluated, made.eval_lengths = evaluation_data(trainer), rows.evaluation
            made.expect_steps()
            made.create_accelerator_and_postprocess()
            made.watch()
            loaded = {name: one.dtype.itemsize for name, one in model.named_parameters()}
            tokens = shapes.train.row_tokens
            evaluated = tokens if shapes.evaluation is None else shapes.evaluation.row_tokens
            return simulation_of(recipe, made, tokens, evaluated, loaded=loaded, on_gpu=on_gpu)
        except Exception as error:
            raise SetupError(
                f"plan: a step of {type(trainer).__name__} cannot be simulated on tensors without values "
                f"({type(error).__name__}: {first_line(error)}). Plan a recipe of the same model instead."
            ) from error


def untrained_copy(trainer: Trainer, leftmost: type, args: TrainingArguments, model: Any) -> Any:
    """Of the same class and settings, ``leftmost`` before its class; without its callbacks, and what instruments it."""
    own: Any = type(trainer)
    made: Any = object.__new__(type(own.__name__, (leftmost, own), {}))
    # A method that somebody has wrapped on the instance would run the original.
    vars(made).update({name: held for name, held in vars(trainer).items() if not callable(getattr(own, name, None))})
    made.args, made.model, made.model_wrapped, made.lr_scheduler, made.model_init = args, model, model, None, None
    made.is_in_train, made._created_lr_scheduler, made._train_batch_size = False, False, args.train_batch_size
    made._metrics = copy.deepcopy(getattr(trainer, "_metrics", None))
    made.state, made.control = TrainerState(is_local_process_zero=True, is_world_process_zero=True), TrainerControl()
    made.callback_handler = CallbackHandler([DefaultFlowCallback], model, trainer.processing_class, None, None)
    return made


class OwnSteps:
    """Leftmost over the class of a user's trainer: nothing is recorded, and rows come in their order."""

    train_dataset: Any

    def train(self, *args: Any, **kwargs: Any) -> Any:
        return Trainer.train(self, *args, **kwargs)  # type: ignore[arg-type]

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return torch.utils.data.SequentialSampler(self.train_dataset)


class _SimulatedSteps(OwnSteps, HeadOfAGpu):
    evaluated: Any = None
    eval_lengths: Lengths | None = None

    def evaluation_rows(self, length: int, count: int) -> list[dict[str, Any]]:
        assert self.eval_lengths is not None
        return list(batch_rows(self.evaluated, self.eval_lengths, count, count))


def batch_rows(dataset: Any, lengths: Lengths, batch: int, count: int) -> Iterator[dict[str, Any]]:
    """So many rows: in each batch the longest and, last, the shortest, so that a mask is needed; alone the longest."""
    held = lengths.reshape(len(lengths), -1).max(axis=1)
    longest, shortest = dataset[int(held.argmax())], dataset[int(held.argmin())]
    for place in range(count):
        yield dict(shortest if batch > 1 and place % batch == batch - 1 else longest)


def _blank_copies(trainer: Trainer, model: Any, *, quantized: bool) -> tuple[Any, Any, Any]:
    """Model, reference model and optimizer, in which each tensor of the models has no values; ties and hooks stay."""
    reference = getattr(trainer, "ref_model", None)
    memo: dict[int, Any] = {}
    for module in filter(None, (model, reference)):
        for one in module.parameters():
            memo.setdefault(id(one), _blank_parameter(one))
        for one in module.buffers():
            memo.setdefault(id(one), emptied(one))
    copies = copy.deepcopy((model, reference, trainer.optimizer), memo)
    for blank in filter(None, copies[:2]):
        if quantized:
            blank_quantized(blank, blank.config.dtype or torch.float32)
        for module in blank.modules():
            _rebind(module, memo)
        vars(blank)["to"] = lambda *args, blank=blank, **kwargs: blank  # it is where it is to be
    return copies


def _blank_parameter(one: nn.Parameter) -> nn.Parameter:
    blank = nn.Parameter(emptied(one.data), requires_grad=one.requires_grad)
    for name in ("compress_statistics", "quant_type", "ds_shape"):  # of bitsandbytes
        if hasattr(one, name):
            setattr(blank, name, getattr(one, name))
    return blank


def _rebind(module: nn.Module, memo: dict[int, Any]) -> None:
    """A forward that wraps another (TRL's fused head does) holds that of the original model in its closure."""
    forward = vars(module).get("forward")
    inner = getattr(forward, "__func__", None)
    if not isinstance(inner, FunctionType) or not inner.__closure__:
        return
    cells = tuple(CellType(_rebound(cell.cell_contents, memo)) for cell in inner.__closure__)
    own = FunctionType(inner.__code__, inner.__globals__, inner.__name__, inner.__defaults__, cells)
    own.__kwdefaults__ = inner.__kwdefaults__
    own.__dict__.update(inner.__dict__)
    vars(module)["forward"] = MethodType(own, module)


def _rebound(held: Any, memo: dict[int, Any]) -> Any:
    if isinstance(held, MethodType) and id(held.__self__) in memo:
        return MethodType(held.__func__, memo[id(held.__self__)])
    return memo.get(id(held), held) if isinstance(held, nn.Module) else held


def _remarks(trainer: Trainer, recipe: Recipe) -> Iterator[str]:
    yield "the trainer's callbacks are not simulated, nor what a collator or a loss does outside of torch"
    data: Any = trainer.train_dataset
    if _token_columns(data) is None and len(data) > _MOST_COLLATED:
        yield f"of {len(data):,} rows, at most {_MOST_COLLATED:,} were tokenised: longer ones may be among the others"
    reduces: Callable[..., Any] | None = trainer.preprocess_logits_for_metrics
    if is_evaluated(recipe) and trainer.compute_metrics is not None and reduces is None:
        yield (
            "compute_metrics without preprocess_logits_for_metrics keeps the logits of all evaluated rows on the GPU: "
            "only those of one batch are planned"
        )
