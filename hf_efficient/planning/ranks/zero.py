"""What DeepSpeed's ZeRO allocates on the way through a step (0.19.8), set as the launch sets it."""

from hf_efficient.planning.ranks.log import Score, Walk
from hf_efficient.planning.ranks.shares import Sizes, gradient_indices, layer_uses
from hf_efficient.planning.simulation import HeldWeight, Simulation, Unit

_BACKWARD = ("backward", "recompute")
_STEP_GROUP = 1_000_000_000
"""Elements that ZeRO-3 steps on at once: ``sub_group_size``."""


class ZeroWalk(Walk):
    """Adds to a score buckets, gathered weights, and gradients in float32 during the step, unit by unit. ZeRO-1 and 2
    have a reduction bucket of fixed size during each backward; ZeRO-3 has it from the start. A bucket is copied once
    more to be sent (``reduce_scatter_coalesced``, ``allreduce_bucket``). ZeRO-3 gathers weights into a flat buffer when
    needed, and keeps small ones and those that come again soon."""

    def __init__(self, simulation: Simulation, score: Score, sizes: Sizes) -> None:
        super().__init__(simulation)
        self._score, self._sizes, self._units_all = score, sizes, simulation.units
        trained = [weight for weight in simulation.weights.values() if weight.trained]
        itemsize = max((weight.itemsize for weight in trained), default=0)
        elements = sizes.sharding.bucket_elements
        doubled = 2 if sizes.sharding.overlap_comm and sizes.strategy != "zero3" else 1
        self._itemsize = itemsize
        self._bucket_bytes = elements * itemsize * doubled
        self._copy_bytes = min(elements, sum(weight.elements for weight in trained)) * itemsize
        self._buckets: list[int] = []
        self._gathered: dict[str, list[int]] = {}
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
        """What the root holds is needed at once; in the backward the bucket of ZeRO-1 and 2, and the copy of what is in
        one."""
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
        self._ahead = None
        if self.doing == "backward" or self._evaluating or not self._comes_again_soon(unit):
            self._free(unit, event)

    def ends(self, event: int) -> None:
        if self.doing == "forward":
            return
        for unit in self._units_all:
            self._free(unit, event)
        for number in self._buckets:
            self._score.end(number, event)
        self._buckets = []

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

    def _free(self, unit: Unit, event: int) -> None:
        for number in self._gathered.pop(unit.name, ()):
            self._score.end(number, event)


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
