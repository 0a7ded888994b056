"""What torch's ``fully_shard`` allocates on the way through a step (torch 2.13, ``_fsdp_param_group.py``)."""

from hf_efficient.planning.ranks.log import Score, Walk
from hf_efficient.planning.ranks.shares import Sizes, gradient_indices
from hf_efficient.planning.simulation import Simulation, Unit

_SENT = "communication"


class FullyShardWalk(Walk):
    """Adds to a score what the units gather and reduce. Before a unit runs, its weights are gathered into a flat buffer
    and copied out. The forward frees the buffer once the next unit is copied out, and the copies at the unit's end, but
    for those that stay. The backward frees the buffer at once, then fills the next unit's ahead. A unit's gradients are
    copied into a flat buffer, which is freed after the next unit's backward. In all but the last micro-batch of a step
    gradients stay whole (``no_sync``)."""

    def __init__(self, simulation: Simulation, score: Score, sizes: Sizes) -> None:
        super().__init__(simulation)
        self._score, self._sizes = score, sizes
        self._root = simulation.units[-1]
        self._lives, self._gradients = simulation.log.lives, gradient_indices(simulation)
        self._casts = sizes.mixed or sizes.sharding.offload_parameters
        self._order: list[Unit] = []
        self._buffers: dict[str, int] = {}
        self._copies: dict[str, list[int]] = {}
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
        if unit.name not in self._copies and self._sizes.unit_gathered(unit):
            buffer = self._buffers.pop(unit.name, None)
            if buffer is None:
                buffer = self._gather(unit, event)
            self._copies[unit.name] = [
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
        self._last_buffer = None
        if self.doing == "forward":
            return
        for unit in (*self._order, self._root):
            if unit.name not in self._done:
                self.after(unit, event)
        for buffer in self._buffers.values():
            self._score.end(buffer, event)
        self._buffers = {}
        self._free_last_input(event)
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
        if ahead.name not in self._copies and ahead.name not in self._buffers and self._sizes.unit_gathered(ahead):
            self._buffers[ahead.name] = self._gather(ahead, event)

    def _free(self, unit: Unit, event: int) -> None:
        for copy in self._copies.pop(unit.name, ()):
            self._score.end(copy, event)

    def _free_last_input(self, event: int) -> None:
        self._score.end(self._last_input, event)
        self._last_input = None

    def _reduce(self, unit: Unit, event: int) -> None:
        found = ((weight, self._gradients.get(weight.name, [])[self._step :]) for weight in unit.weights)
        trained = [(weight, indices[0]) for weight, indices in found if indices]
        self._free_last_input(event)
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
