"""The recipe's own training loop on a model without values: what it allocates, when, and what its memory is made of."""

import copy
import functools
import math
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from hf_efficient.estimate.sharding import ZERO, ModelStates, Sharding
from hf_efficient.model.adapter import check_wrap_classes
from hf_efficient.planning import simulated_trainer
from hf_efficient.planning.arguments import PROMPT_TOKENS, collector_paused, process_kept, simulation_arguments
from hf_efficient.planning.blank_model import (
    blank_model,
    blank_teacher,
    kernels_of_a_gpu,
    quantization_constants,
    values_of,
)
from hf_efficient.planning.simulated_trainer import SimulatedEvaluation, SimulatedTrainer
from hf_efficient.planning.target import attention_kernels, check_attention, liger_kernels
from hf_efficient.recipe.objectives import OBJECTIVES
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.device import OperatorWork
from hf_efficient.records.plan import PlannedMemory, PlannedTensor, PlannedTimeline
from hf_efficient.simulate import tensor_log
from hf_efficient.simulate.blank import compute_in
from hf_efficient.simulate.decompositions import decompositions, workspaces
from hf_efficient.simulate.operator_count import OperatorCount
from hf_efficient.simulate.tensor_log import ModuleNames, StorageLife, TensorLog

_LARGEST = 10


@dataclass(frozen=True)
class HeldWeight:
    """One parameter. ``shape``: of the tensor; of a packed one (bitsandbytes' 4-bit weights), that of its bytes.
    ``values``: that it stands for. ``loaded_itemsize``, ``itemsize``: bytes of an element as the run loads it, and as
    the step computes with it. ``quantized``: packed, or of one byte per value (LLM.int8())."""

    name: str
    shape: tuple[int, ...]
    values: int
    loaded_itemsize: int
    itemsize: int
    trained: bool
    packed: bool = False
    quantized: bool = False

    @classmethod
    def of(cls, name: str, one: Any, loaded: dict[str, int]) -> "HeldWeight":
        values, size, quantized = values_of(one), one.dtype.itemsize, not one.dtype.is_floating_point
        stored, packed = loaded.get(name, size), values != one.numel()
        return cls(name, tuple(one.shape), values, stored, size, one.requires_grad, packed, quantized)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered together; ``tail`` and ``root`` have no module of their own. ``stays``: FSDP2 keeps
    it gathered from the forward to the backward. ``ends_last``: its backward ends with the whole: its inputs, token
    ids, get no gradient. ``is_layer``: a block of the model, not an embedding, the head, or what is left over."""

    name: str
    weights: tuple[HeldWeight, ...]
    modules: tuple[str, ...]
    stays: bool = False
    ends_last: bool = False
    is_layer: bool = False


@dataclass(frozen=True)
class Rank:
    """One of several ranks; ``states`` is the whole of what is spread, ``layers`` are gathered one by one."""

    sharding: Sharding
    states: ModelStates
    layers: int


@dataclass(frozen=True)
class Simulation:
    """What two optimizer steps did, and an evaluation of a batch after them, if the run evaluates.
    ``backward_starts``, ``forward_ends``: events before each backward, and up to each forward's end, in training.
    ``vocabulary``: the last dimension of the logits. ``rows``, ``length``: of a micro-batch; a pair has two rows.
    ``micro_batches``, ``operators``: of an optimizer step of the run; perhaps more than were simulated. ``parameters``:
    a 4-bit weight counts as its values. ``paged_bytes``: optimizer state outside of torch's allocator. ``units``: of
    the whole model, as several ranks would gather it. ``rank``: None of a process that trains alone."""

    log: TensorLog
    backward_starts: tuple[int, ...]
    second_step: int
    vocabulary: int
    first_step: int
    rows: int
    length: int
    micro_batches: int
    operators: Sequence[OperatorWork]
    parameters: int
    trained_parameters: int
    paged_bytes: int
    forward_ends: tuple[int, ...]
    evaluation: SimulatedEvaluation | None
    units: tuple[Unit, ...]
    rank: Rank | None = None

    @functools.cached_property
    def weights(self) -> dict[str, HeldWeight]:
        return {weight.name: weight for unit in self.units for weight in unit.weights}

    def category(self, life: StorageLife) -> str:
        return tensor_log.category_of(life, self.backward_starts, self.vocabulary)


def units_of(model: Any, loaded: dict[str, int], classes: Sequence[str] | None = None) -> tuple[Unit, ...]:
    """The units as accelerate's ``fsdp2_prepare_model`` (1.15) cuts a model: blocks, embedding, final norm with head
    (and a shared embedding), and last the root. ``loaded``: bytes of an element of a parameter as the run loads it, by
    name; else as it is. ``classes``: of the blocks; default: those that the model's class says not to split."""
    found: list[Unit] = []
    taken: set[int] = set()
    weights = {id(one): HeldWeight.of(name, one, loaded) for name, one in model.named_parameters()}
    names = {id(module): name for name, module in model.named_modules()}
    embedding = model.get_input_embeddings()
    for parts, name in _cut(model, names, classes):
        own = {id(one): None for part in parts for one in part.parameters() if id(one) not in taken}
        taken.update(own)
        modules = tuple(names[id(part)] for part in parts)
        stays, ends_last = name == "tail", embedding in parts
        held = tuple(weights[one] for one in own)
        found.append(Unit(name, held, modules, stays, ends_last, is_layer=not (stays or ends_last)))
    rest = tuple(one for key, one in weights.items() if key not in taken)
    return (*found, Unit("root", rest, (), stays=True))


def unit_names(units: Iterable[Unit], modules: Iterable[str]) -> dict[str, Unit | None]:
    """The unit of each module by its name; None for one of the root's."""
    by_prefix = {prefix: unit for unit in units for prefix in unit.modules}

    def of(module: str) -> Unit | None:
        while module and module not in by_prefix:
            module = module.rpartition(".")[0]
        return by_prefix.get(module)

    return {module: of(module) for module in set(modules)}


def _cut(model: Any, names: dict[int, str], classes: Sequence[str] | None) -> Iterator[tuple[list[nn.Module], str]]:
    """The modules of each unit but the root in the order in which they run, and what it is called."""
    unsplit = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    own = _blocks(model, unsplit)
    blocks = own if classes is None else _blocks(model, set(classes))
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    tied = head is not None and getattr(embedding, "weight", None) is getattr(head, "weight", None)
    if not tied and embedding is not None:
        yield [embedding], names[id(embedding)]
    for block in blocks:
        yield [block], names[id(block)]
    tail = [_final_norm(model, own), embedding if tied else None, head]
    yield [part for part in tail if part is not None], "tail"


def _blocks(model: Any, classes: set[str]) -> list[nn.Module]:
    """The modules of these classes; of one inside another the outer, which is an upper bound."""
    found = [module for module in model.modules() if type(module).__name__ in classes]
    inside = {id(part) for block in found for part in block.modules() if part is not block}
    return [block for block in found if id(block) not in inside]


def _final_norm(model: Any, blocks: list[nn.Module]) -> nn.Module | None:
    if not blocks:
        return None
    for parent in model.modules():
        children = list(parent.children())
        if any(isinstance(child, nn.ModuleList) and blocks[0] in child for child in children):
            return next((child for child in reversed(children) if "Norm" in type(child).__name__), None)
    return None


def simulate(
    recipe: Recipe,
    config: PretrainedConfig,
    length: int | None = None,
    *,
    padded: bool = False,
    evaluation_length: int | None = None,
    on_gpu: bool = True,
    computes_in: torch.dtype | None = None,
) -> Simulation:
    """Build model and trainer of a recipe, train two steps, and evaluate where the run would. ``length``: tokens of
    every row; default: the most that the recipe allows. ``padded``: a row of each micro-batch is shorter, so that the
    attention needs a mask. ``on_gpu``: the fused LM head (``loss_type: chunked_nll``) takes less memory there, sums of
    two dtypes none. ``computes_in``: what whoever spreads the model over ranks casts float32 weights to."""
    from hf_efficient.planning.trainers import preference_trainer, simulation_trainer

    recipe = _in_bfloat16(recipe) if recipe.train.get("fp16") else recipe
    attention = recipe.model.attn_implementation if on_gpu else None
    check_attention(attention)
    with process_kept(), collector_paused(), tempfile.TemporaryDirectory() as directory, attention_kernels(attention):
        args: Any = simulation_arguments(recipe, directory)
        model = blank_model(recipe, config, seed=args.seed, checkpointing=args.gradient_checkpointing)
        check_wrap_classes(model, recipe.distributed.wrap_classes)
        loaded = {name: one.dtype.itemsize for name, one in model.named_parameters()}
        if computes_in is not None:
            compute_in(model, computes_in)
        objective = OBJECTIVES[recipe.objective]
        if length is None and objective.generates:
            length = PROMPT_TOKENS + args.max_completion_length
        elif length is None:
            length = args.max_length or int(config.get_text_config().max_position_embeddings)
        with liger_kernels(recipe, model) if on_gpu else nullcontext():
            teacher = blank_teacher(recipe) if recipe.runs_teacher else None
            trainer: SimulatedTrainer
            if objective.generates:
                from hf_efficient.planning.completions import completion_trainer

                trainer = completion_trainer(recipe, model, args, length, teacher)
            elif objective.imitates:
                trainer = simulation_trainer(recipe, model, args, length, padded=padded, teacher=teacher)
            else:
                reference = None
                if recipe.adapter.method == "full" and objective.reference:
                    reference = blank_model(recipe, copy.deepcopy(config), seed=args.seed, checkpointing=False)
                trainer = preference_trainer(recipe, model, reference, args, length)
            return simulation_of(recipe, trainer, length, evaluation_length or length, loaded=loaded, on_gpu=on_gpu)


def _in_bfloat16(recipe: Recipe) -> Recipe:
    """What is mixed with float16: its tensors are as large, and a CPU has no such autocast."""
    adapter, model = recipe.adapter, recipe.model
    if model.dtype == "float16":
        model = model.model_copy(update={"dtype": "bfloat16"})
    if adapter.quantization is not None and adapter.quantization.compute_dtype == "float16":
        section = adapter.quantization.model_copy(update={"compute_dtype": "bfloat16"})
        adapter = adapter.model_copy(update={"quantization": section})
    return recipe.model_copy(update={"model": model, "adapter": adapter})


def simulation_of(
    recipe: Recipe,
    trainer: SimulatedTrainer,
    length: int,
    evaluation_length: int,
    *,
    loaded: dict[str, int],
    on_gpu: bool = True,
) -> Simulation:
    """Train two steps with a trainer of a model without values, and evaluate where the run would. ``recipe``: for the
    steps that it accumulates over, and the classes that are wrapped. ``length``, ``evaluation_length``: tokens of every
    row. ``loaded``: bytes of an element of each parameter as the run loads it, by name."""
    model: Any = trainer.model
    wanted = int(recipe.train.get("gradient_accumulation_steps", 1))
    trainer.micro_batch_factor = wanted / trainer.args.gradient_accumulation_steps
    trainer.names, trainer.on_gpu = ModuleNames(model), on_gpu
    parts, inside = decompositions(on_gpu=on_gpu), workspaces(on_gpu=on_gpu)
    trainer.tensors = log = TensorLog(trainer.where, decompositions=parts, workspaces=inside)
    trainer.operators = operators = OperatorCount()
    for one in filter(None, (model, *(getattr(trainer, name, None) for name in ("ref_model", "teacher_model")))):
        _note_model(log, one)
    forward_ends: list[int] = []

    def note_end(*_: Any) -> None:
        if torch.is_grad_enabled():  # a reference model's forward, and an evaluation's, do not train
            forward_ends.append(len(log.events))

    model.register_forward_hook(note_end)
    evaluation = None
    with log, kernels_of_a_gpu(recipe):
        trainer.train()
        if simulated_trainer.is_evaluated(recipe):
            evaluation = simulated_trainer.simulate_evaluation(trainer, evaluation_length)
    optimizer = getattr(trainer.optimizer, "optimizer", None)  # what accelerate has wrapped
    return Simulation(
        log=log,
        backward_starts=tuple(trainer.backward_starts),
        second_step=trainer.step_starts[1],
        vocabulary=model.config.get_text_config().vocab_size,
        first_step=trainer.step_starts[0],
        rows=trainer.args.per_device_train_batch_size * OBJECTIVES[recipe.objective].rows,
        length=length,
        micro_batches=wanted,
        operators=operators.works(),
        parameters=sum(values_of(one) for one in model.parameters()),
        trained_parameters=sum(one.numel() for one in model.parameters() if one.requires_grad),
        paged_bytes=getattr(optimizer, "paged_bytes", 0),
        forward_ends=tuple(forward_ends),
        evaluation=evaluation,
        units=units_of(model, loaded, recipe.distributed.wrap_classes),
    )


def _note_model(log: TensorLog, model: torch.nn.Module) -> None:
    for name, parameter in model.named_parameters():
        is_adapter = parameter.requires_grad and ("lora_" in name or "modules_to_save" in name)
        log.add(parameter, name, "adapter" if is_adapter else "weights")
    for name, module in model.named_modules():
        for constant in quantization_constants(module):
            log.add(constant, f"{name}.weight", "weights")
        for buffer in module.buffers(recurse=False):
            log.add(buffer, name, "weights")


def planned_memory(simulation: Simulation) -> PlannedMemory:
    log = simulation.log
    peak = tensor_log.find_peak(log)
    there = [(life, simulation.category(life)) for life in log.lives if life.lives_at(peak.event)]
    categories: Counter[str] = Counter()
    for life, category in there:
        categories[category] += life.bytes
    there.sort(key=lambda held: held[0].bytes, reverse=True)
    phases = {phase: most for phase, most in tensor_log.phase_peaks(log).items() if phase not in ("setup", "data")}
    return PlannedMemory(
        peak_allocated_bytes=peak.bytes,
        peak_phase=peak.life.phase,
        peak_module=peak.life.module,
        peak_step=2 if peak.event > simulation.second_step else 1,
        categories=dict(categories),
        category_peak_bytes=tensor_log.category_peaks(log, simulation.category),
        largest=_largest(there),
        phase_peak_allocated_bytes=phases,
        paged_bytes=simulation.paged_bytes,
        model_bytes=sum(life.bytes for life in log.lives if life.category in ("weights", "adapter")),
    )


def _largest(there: Sequence[tuple[StorageLife, str]]) -> list[PlannedTensor]:
    """Equal ones are one entry. A storage that its shape does not fill, as the share of a rank, is shown flat."""
    groups: dict[tuple[Any, ...], list[StorageLife]] = {}
    for life, category in there:
        count = life.bytes // life.dtype.itemsize
        shape = life.shape if math.prod(life.shape) == count else (count,)
        dtype = str(life.dtype).removeprefix("torch.")
        groups.setdefault((life.bytes, category, shape, dtype), []).append(life)
    return [
        PlannedTensor(held, category, equal[0].module, equal[0].operator, shape, dtype, len(equal))
        for (held, category, shape, dtype), equal in list(groups.items())[:_LARGEST]
    ]


def planned_timeline(simulation: Simulation) -> PlannedTimeline:
    """What is allocated from the first step on; two simulations may differ by when garbage is collected."""
    first = simulation.first_step
    moments = tensor_log.timeline(simulation.log, simulation.category, first)
    names = dict.fromkeys(name for moment in moments for name in moment.categories)
    return PlannedTimeline(
        events=[moment.event - first for moment in moments],
        phases=[moment.phase for moment in moments],
        categories={name: [moment.categories.get(name, 0) for moment in moments] for name in names},
        second_step=simulation.second_step - first,
    )


def held_by_category(simulation: Simulation) -> dict[str, int]:
    """Bytes by category, each at its own moment, so that they need not add up to the peak. Weights and adapter at most;
    gradients and state at the optimizer's step (of DeepSpeed, which steps inside the backward, gradients at most);
    activations and logits where a backward begins. Under FSDP2 whole gradients may be held before the step."""
    log = simulation.log
    marked: dict[str, list[int]] = {}
    for index, size in log.events:
        category = log.lives[index].category
        if category and (category, log.lives[index].phase) != ("gradients", "optimizer"):  # ZeRO's casts of its share
            marked.setdefault(category, []).append(size)
    found = {category: max(accumulate(sizes)) for category, sizes in marked.items()}
    steps = [] if simulation.rank is not None and simulation.rank.sharding.strategy in ZERO else _steps(simulation)
    if steps and "gradients" in found:
        found["gradients"] = max(_bytes(simulation, "gradients", {step}) for step in steps)
    if "optimizer_state" in found:
        found["optimizer_state"] = _bytes(simulation, "optimizer_state", {simulation.second_step})
    found["activations"] = found["logits"] = 0
    for end, start in zip(simulation.forward_ends, simulation.backward_starts, strict=True):
        found["activations"] = max(found["activations"], _bytes(simulation, "activations", {start}))
        found["logits"] = max(found["logits"], _bytes(simulation, "logits", {end, start}))
    return found


def _steps(simulation: Simulation) -> list[int]:
    """Events before the first allocation of each optimizer step; none of one that allocates nothing."""
    born = [life.born_at for life in simulation.log.lives if life.phase == "optimizer"]
    halves = ([one for one in born if (one < simulation.second_step) == first] for first in (True, False))
    return [min(half) for half in halves if half]


def _bytes(simulation: Simulation, category: str, events: set[int]) -> int:
    return sum(
        life.bytes
        for life in simulation.log.lives
        if any(life.lives_at(event) for event in events) and simulation.category(life) == category
    )
