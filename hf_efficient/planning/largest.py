"""The largest micro-batch and the longest rows that fit an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hf_efficient.planning.trials import Trial, Trials
from hf_efficient.recipe.load import change_recipe
from hf_efficient.recipe.rules.distributed import unnamed_batch
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.plan import Plan, PlannedLargest, PlannedOutcome

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ROW_TOKENS_STEP = 64
_MOST_ROWS = 1024
_MOST_TOKENS = 2**20
"""Of a micro-batch: a rehearsal holds the token ids, and nothing else, of real size."""
_PROBES_ON_THE_LINE = 6


def largest_that_fit(
    recipe: Recipe, config: PretrainedConfig, plan: Plan, trials: Trials, start: Trial
) -> PlannedLargest:
    """Search along both, the other being the recipe's.

    Args:
        recipe: the recipe.
        config: of its model.
        plan: of the recipe.
        trials: on the accelerator.
        start: the recipe as it is.
    """
    memory = trials.device.usable_memory_bytes
    answers = 2 if recipe.method == "dpo" else 1
    rows, length = plan.micro_batch_rows // answers, plan.row_tokens
    most_rows = max(1, min(_MOST_ROWS, _MOST_TOKENS // (answers * length)))
    found_rows = most_that_fits(
        lambda count: trials.run(_with_rows(recipe, count), length).outcome,
        memory,
        {rows: start.outcome},
        most_rows,
    )
    positions = int(getattr(config.get_text_config(), "max_position_embeddings", None) or _MOST_TOKENS)
    most = max(1, min(positions, _MOST_TOKENS // (answers * rows)) // ROW_TOKENS_STEP)
    known = {length // ROW_TOKENS_STEP: start.outcome} if length % ROW_TOKENS_STEP == 0 else {}
    found_steps = most_that_fits(lambda count: trials.run(recipe, count * ROW_TOKENS_STEP).outcome, memory, known, most)
    return PlannedLargest(
        accelerator=trials.device.name,
        micro_batch_rows=found_rows,
        row_tokens=found_steps * ROW_TOKENS_STEP,
        row_tokens_step=ROW_TOKENS_STEP,
        rows_bounded=found_rows >= most_rows,
        tokens_bounded=found_steps >= most,
    )


def _with_rows(recipe: Recipe, count: int) -> Recipe:
    """As many rows as fit need not divide the global batch."""
    return change_recipe(recipe, {**unnamed_batch(recipe), "train.per_device_train_batch_size": count})


def most_that_fits(
    probe: Callable[[int], PlannedOutcome], memory_bytes: int, known: dict[int, PlannedOutcome], most: int
) -> int:
    """The largest count that fits, from 1 to ``most``; 0 where none does.

    Memory grows with the count, nearly on a line: the line through the two nearest probes tells where to look next,
    and the probe after the last that fits confirms. What six probes have not found is found by bisection.

    Args:
        probe: tells what a count comes to.
        memory_bytes: of the accelerator, that can be used.
        known: outcomes that are there already, by count.
        most: the largest count to look at.
    """
    seen = dict(known)
    while True:
        fits = max((count for count, outcome in seen.items() if outcome.fits and count <= most), default=0)
        too_much = min((count for count, outcome in seen.items() if not outcome.fits), default=most + 1)
        if too_much - fits <= 1:
            return fits
        middle = (fits + too_much) // 2
        guess = _guess(seen, memory_bytes) if len(seen) < _PROBES_ON_THE_LINE else middle
        guess = min(max(guess, fits + 1), too_much - 1)
        seen[guess] = probe(guess)


def _guess(seen: dict[int, PlannedOutcome], memory_bytes: int) -> int:
    """Where the line through the two probes nearest to the limit meets it; twice as much where there is one probe."""
    near = sorted(seen, key=lambda count: abs(seen[count].needed_bytes - memory_bytes))[:2]
    if len(near) < 2:
        only = near[0] if near else 0
        return only // 2 if near and not seen[only].fits else max(1, 2 * only)
    low, high = sorted(near)
    slope = (seen[high].needed_bytes - seen[low].needed_bytes) / (high - low)
    if slope <= 0:
        return 2 * high
    return int(low + (memory_bytes - seen[low].needed_bytes) / slope)
