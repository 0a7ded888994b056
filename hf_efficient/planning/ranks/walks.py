"""What a strategy allocates on the way through a step: torch's ``fully_shard`` (torch 2.13, ``_fsdp_param_group.py``),
and DeepSpeed's ZeRO (0.19.8), set as the launch sets it."""

from collections.abc import Callable

from hf_efficient.planning.ranks.log import Score
from hf_efficient.planning.ranks.shares import Sizes, gradient_indices, layer_uses
from hf_efficient.planning.simulation import HeldWeight, Simulation, Unit, unit_names

_SENT = "communication"
_DOING = {"forward": "forward", "backward": "backward", "recompute": "backward", "evaluation": "forward"}
_BACKWARD = ("backward", "recompute")
_STEP_GROUP = 1_000_000_000
"""Elements that ZeRO-3 steps on at once: ``sub_group_size``."""


class Walk:
    """Goes through a log and calls the methods below where forwards and backwards (``doing``) and their units begin and
    end. A unit runs from the first allocation in its modules to the first in another's; in the forward, the root's ends
    it too. Its backward includes its recomputation where its activations were not kept."""

    begins: Callable[[int], None]
    ends: Callable[[int], None]
    before: Callable[[Unit, int], None]
    after: Callable[[Unit, int], None]

    def __init__(self, simulation: Simulation, score: Score, sizes: Sizes) -> None:
        self.doing = ""
        self._log, self._score, self._sizes = simulation.log, score, sizes
        self._units = unit_names(simulation.units, (life.module for life in simulation.log.lives))
        self._all = len(simulation.backward_starts)
        self._evaluating = False
        self._unit: Unit | None = None
        self._done: set[str] = set()
        self._backwards = 0
        self._gathered: dict[str, list[int]] = {}

    @property
    def is_last_micro_batch(self) -> bool:
        """Of its optimizer step: the backward that runs, or the next one."""
        left = self._all - 1 - self._backwards + (self.doing == "backward")
        return left % max(1, (self._all + 1) // 2) == 0  # the first step may have fewer

    def go(self) -> None:
        for event, (index, size) in enumerate(self._log.events):
            if size < 0:
                continue
            life = self._log.lives[index]
            doing = _DOING.get(life.phase, "")
            self._evaluating = life.phase == "evaluation"
            if doing != self.doing:
                self._turn(doing, event)
            if doing:
                self._enter(self._units[life.module], event)
        self._turn("", len(self._log.events))

    def _free(self, unit: Unit, event: int) -> None:
        """End what the unit has gathered."""
        for number in self._gathered.pop(unit.name, ()):
            self._score.end(number, event)

    def _turn(self, doing: str, event: int) -> None:
        self._leave(event)
        if self.doing:
            self.ends(event)
        self.doing, self._done = doing, set()
        if doing:
            self._backwards += doing == "backward"
            self.begins(event)

    def _enter(self, unit: Unit | None, event: int) -> None:
        if unit is self._unit or (self.doing == "backward" and (unit is None or unit.name in self._done)):
            return
        self._leave(event)
        self._unit = unit
        if unit is not None:
            self.before(unit, event)

    def _leave(self, event: int) -> None:
        if self._unit is not None and not (self.doing == "backward" and self._unit.ends_last):
            self.after(self._unit, event)
            self._done.add(self._unit.name)
        self._unit = None


class FullyShardWalk(Walk):
    """Adds to a score what the units gather and reduce. Before a unit runs, its weights are gathered into a flat buffer
    and copied out. The forward frees the buffer once the next unit is copied out, and the copies at the unit's end, but
    for those that stay. The backward frees the buffer at once, then fills the next unit's ahead. A unit's gradients are
    copied into a flat buffer, which is freed after the next unit's backward. In all but the last micro-batch of a step
    gradients stay whole (``no_sync``)."""

    def __init__(self, simulation: Simulation, score: Score, sizes: Sizes) -> None:
        super().__init__(simulation, score, sizes)
        self._root = simulation.units[-1]
        self._lives, self._gradients = simulation.log.lives, gradient_indices(simulation)
        self._casts = sizes.mixed or sizes.sharding.offload_parameters
        self._order: list[Unit] = []
        self._buffers: dict[str, int] = {}
        self._last_buffer: int | None = None
        self._last_input: int | None = None
        self._step = 0

    def begins(self, event: int) -> None:
        """In the forward the root's own come first. So does the root's backward, and gathers ahead what ran last."""
        if self.doing == "forward":
            self._order = []
            self.before(self._root, event)
        else:
            self._order.append(self._root)
            self._gather_ahead(self._root, event)

    def before(self, unit: Unit, event: int) -> None:
        """Gather, unless it was gathered ahead or stayed; in the backward gather the next one ahead."""
        backward = self.doing == "backward"
        if unit.name not in self._gathered and self._sizes.unit_gathered(unit):
            buffer = self._buffers.pop(unit.name, None)
            if buffer is None:
                buffer = self._gather(unit, event)
            self._gathered[unit.name] = [
                self._add(event, self._sizes.gathered(weight), weight.name, weight.itemsize) for weight in unit.weights
            ]
            self._score.end(buffer if backward else self._last_buffer, event)
            self._last_buffer = None if backward else buffer
        if backward:
            self._gather_ahead(unit, event)

    def after(self, unit: Unit, event: int) -> None:
        if self.doing == "backward":
            self._free(unit, event)
            if self.is_last_micro_batch:
                self._reduce(unit, event)
            return
        if unit not in self._order:
            self._order.append(unit)
        if not unit.stays:
            self._free(unit, event)

    def ends(self, event: int) -> None:
        """With the backward, what no gradient passes out of, and what was gathered ahead in vain."""
        self._score.end(self._last_buffer, event)
        if self.doing == "forward":
            return
        for unit in (*self._order, self._root):
            if unit.name not in self._done:
                self.after(unit, event)
        for buffer in self._buffers.values():
            self._score.end(buffer, event)
        self._buffers = {}
        self._score.end(self._last_input, event)
        self._step += self.is_last_micro_batch

    def _add(self, event: int, size: int, name: str, itemsize: int) -> int:
        return self._score.add(event, size, "gathered_weights", name, self.doing, itemsize)

    def _gather(self, unit: Unit, event: int) -> int:
        """The shares in the dtype of the copies, and the buffer that takes them from all ranks."""
        size, itemsize = self._sizes.unit_gathered(unit), unit.weights[0].itemsize
        share = self._add(event, size // self._sizes.sharding.ranks, unit.name, itemsize) if self._casts else None
        buffer = self._add(event, size, unit.name, itemsize)
        self._score.end(share, event)
        return buffer

    def _gather_ahead(self, unit: Unit, event: int) -> None:
        place = self._order.index(unit) if unit in self._order else 0
        if place == 0:
            return
        ahead = self._order[place - 1]
        if ahead.name not in self._gathered and ahead.name not in self._buffers and self._sizes.unit_gathered(ahead):
            self._buffers[ahead.name] = self._gather(ahead, event)

    def _reduce(self, unit: Unit, event: int) -> None:
        found = ((weight, self._gradients.get(weight.name, [])[self._step :]) for weight in unit.weights)
        trained = [(weight, indices[0]) for weight, indices in found if indices]
        self._score.end(self._last_input, event)
        if not trained:
            return
        sizes, score, first = self._sizes, self._score, trained[0][0]
        whole = sum(sizes.whole_gradient(weight) for weight, _ in trained)
        self._last_input = score.add(event, whole, _SENT, unit.name, "backward", first.itemsize)
        for _, index in trained:
            score.end(index, event)
        output = score.add(event, whole // sizes.sharding.ranks, _SENT, unit.name, "backward", first.itemsize)
        if not sizes.sharding.offload_parameters:
            kept = sum(sizes.gradient_shard(weight) for weight, _ in trained)
            share = score.add(event, kept, "gradients", unit.name, "backward", sizes.stored_itemsize(first))
            ends = [end for _, index in trained if (end := self._lives[index].freed_at) is not None]
            if ends:
                score.end(share, max(ends) - 1)
        score.end(output, event)


class ZeroWalk(Walk):
    """Adds to a score buckets, gathered weights, and gradients in float32 during the step, unit by unit. ZeRO-1 and 2
    have a reduction bucket of fixed size during each backward; ZeRO-3 has it from the start. A bucket is copied once
    more to be sent (``reduce_scatter_coalesced``, ``allreduce_bucket``). ZeRO-3 gathers weights into a flat buffer when
    needed, and keeps small ones and those that come again soon."""

    def __init__(self, simulation: Simulation, score: Score, sizes: Sizes) -> None:
        super().__init__(simulation, score, sizes)
        self._units_all = simulation.units
        trained = [weight for weight in simulation.weights.values() if weight.trained]
        itemsize = max((weight.itemsize for weight in trained), default=0)
        elements = sizes.sharding.bucket_elements
        doubled = 2 if sizes.sharding.overlap_comm and sizes.strategy != "zero3" else 1
        self._itemsize = itemsize
        self._bucket_bytes = elements * itemsize * doubled
        self._copy_bytes = min(elements, sum(weight.elements for weight in trained)) * itemsize
        self._buckets: list[int] = []
        self._layer_uses = layer_uses(simulation)
        self._ahead: int | None = None
        if sizes.strategy == "zero3":
            event = simulation.first_step
            score.add(event, self._bucket_bytes, "communication", "bucket", "setup", itemsize)
            for unit in simulation.units:
                small = sum(sizes.gathered(weight) for weight in unit.weights if self._persists(weight))
                score.add(event, small, "gathered_weights", f"{unit.name} (small ones)", "setup")
        self._step_gradients(simulation, trained)

    def begins(self, event: int) -> None:
        """What the root holds is needed at once; in the backward the bucket of ZeRO-1 and 2, and a bucket's copy."""
        if self.doing == "forward":
            self.before(self._units_all[-1], event)
            return
        made = {"bucket, copied": self._copy_bytes}
        if self._sizes.strategy != "zero3":
            made["bucket"] = self._bucket_bytes
        self._buckets = [
            self._score.add(event, size, "communication", name, "backward", self._itemsize)
            for name, size in made.items()
        ]

    def after(self, unit: Unit, event: int) -> None:
        """What the backward needs soon is kept."""
        self._score.end(self._ahead, event)
        if self.doing == "backward" or self._evaluating or not self._comes_again_soon(unit):
            self._free(unit, event)

    def ends(self, event: int) -> None:
        if self.doing == "forward":
            return
        for unit in self._units_all:
            self._free(unit, event)
        for number in self._buckets:
            self._score.end(number, event)

    def _step_gradients(self, simulation: Simulation, trained: list[HeldWeight]) -> None:
        """In the dtype of the master copy, while the optimizer steps."""
        if not self._sizes.mixed or self._sizes.sharding.offload_optimizer:
            return
        share = sum(self._sizes.master(weight) for weight in trained)
        if self._sizes.strategy == "zero3":
            share = min(share, _STEP_GROUP * 4)
        number: int | None = None
        for event, (index, size) in enumerate(simulation.log.events):
            stepping = simulation.log.lives[index].phase == "optimizer"
            if size > 0 and stepping and number is None:
                number = self._score.add(event, share, "gradients", "share in float32", "optimizer", 4)
            elif size > 0 and not stepping and number is not None:
                self._score.end(number, event)
                number = None

    def _persists(self, weight: HeldWeight) -> bool:
        return weight.elements <= self._sizes.sharding.persistent_elements

    def before(self, unit: Unit, event: int) -> None:
        needed = [one for one in unit.weights if not self._persists(one) and self._sizes.gathered(one)]
        if unit.name in self._gathered or not needed:
            return
        sizes, itemsize = [self._sizes.gathered(weight) for weight in needed], needed[0].itemsize
        flat = self._score.add(event, sum(sizes), "gathered_weights", unit.name, self.doing, itemsize)
        self._gathered[unit.name] = [
            self._score.add(event, size, "gathered_weights", weight.name, self.doing, weight.itemsize)
            for size, weight in zip(sizes, needed, strict=True)
        ]
        self._score.end(flat, event)
        if unit.is_layer:
            # Weights are taken whole until they are as many or more (``fetch_sub_module``).
            ahead = min(sum(sizes), self._sizes.sharding.prefetch_elements * itemsize + max(sizes))
            self._ahead = self._score.add(event, ahead, "gathered_weights", "gathered ahead", self.doing, itemsize)

    def _comes_again_soon(self, unit: Unit) -> bool:
        """Whether fewer elements than ``reuse_elements`` are used until the backward needs it
        (``__params_to_release``), counted for every module that runs until then."""
        names = [one.name for one in self._units_all]
        between = 0
        for one in self._units_all[names.index(unit.name) + 1 :]:
            elements = sum(weight.elements for weight in one.weights if self._sizes.is_sharded(weight))
            between += elements * (self._layer_uses if one.is_layer else 2)
        return between < self._sizes.sharding.reuse_elements


def spread_gradients(simulation: Simulation, score: Score, sizes: Sizes) -> None:
    """Under ZeRO-2 and 3 whole gradients last for a moment, and the rank's share takes their place. A gradient is
    copied into the bucket at once; one larger than a bucket waits whole for the next gradient
    (``extra_large_param_to_reduce`` in ``stage_1_and_2.py``, ``__add_grad_to_ipg_bucket`` in ``stage3.py``)."""
    if sizes.sharding.whole_gradients:
        return
    steps: dict[int, list[int]] = {}
    for places in gradient_indices(simulation).values():
        for step, index in enumerate(places):
            steps.setdefault(step, []).append(index)
    lives, weights = simulation.log.lives, simulation.weights
    for of_a_step in steps.values():
        of_a_step.sort(key=lambda index: lives[index].born_at)
        _cut_whole(simulation, score, of_a_step, sizes.sharding.bucket_elements)
    trained = [weight for weight in weights.values() if weight.trained]
    share, itemsize = sum(map(sizes.gradient_shard, trained)), trained[0].itemsize
    if sizes.sharding.offload_optimizer:
        return
    if sizes.strategy == "zero3":
        score.add(simulation.first_step, share, "gradients", "share of all", "setup", itemsize)
        return
    for of_a_step in steps.values():
        known = [lives[index] for index in of_a_step if lives[index].module in weights]
        born = min(life.born_at for life in known)
        held = score.add(born, share, "gradients", "share of all", "backward", itemsize)
        ends = [life.freed_at for life in known if life.freed_at is not None]
        if ends:
            score.end(held, max(ends) - 1)


def _cut_whole(simulation: Simulation, score: Score, made: list[int], bucket_elements: int) -> None:
    """End whole gradients: into the bucket at once, or, where that is too small, when the next one is there."""
    lives, events, weights = simulation.log.lives, simulation.log.events, simulation.weights
    for place, index in enumerate(made):
        weight, end = weights.get(lives[index].module), lives[index].born_at + 1
        is_large = weight is not None and weight.elements > bucket_elements
        if is_large and place + 1 < len(made):
            end = lives[made[place + 1]].born_at + 1
        elif is_large:  # the last one of a backward, which its end sends
            later = enumerate(events[end:], end)
            over = (at for at, (born, size) in later if size > 0 and lives[born].phase not in _BACKWARD)
            end = next(over, len(events))
        score.end(index, end)
