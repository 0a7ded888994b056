"""What a token costs to train by a recipe: at the speed that an earlier run of it measured, or that the user says."""

from dataclasses import dataclass
from pathlib import Path

from hf_efficient.accounting.account import read_account
from hf_efficient.errors import OutputError
from hf_efficient.recipe.schema import Recipe
from hf_efficient.run_dir.paths import RUN_JSON


@dataclass(frozen=True)
class TrainingRate:
    """Of all that trains together; ``tokens_per_second`` without padding. ``source``: where from, or why not known."""

    tokens_per_second: float | None
    usd_per_hour: float | None
    source: str

    def seconds(self, tokens: int) -> float | None:
        return tokens / self.tokens_per_second if self.tokens_per_second else None

    def usd(self, seconds: float | None) -> float | None:
        return None if seconds is None or self.usd_per_hour is None else seconds / 3600 * self.usd_per_hour


def training_rate(recipe: Recipe, tokens_per_second: float | None = None) -> TrainingRate:
    """``tokens_per_second``: said by the user, before what was measured."""
    stated, directory = recipe.cost.price_usd_per_hour, Path(recipe.output_dir).expanduser()
    if tokens_per_second is not None:
        return TrainingRate(tokens_per_second, stated, "--tokens-per-second")
    try:
        account = read_account(directory / "efficiency" / RUN_JSON)
    except OutputError:
        why = f"there is no run in {directory} that measured the speed; write --tokens-per-second N"
        return TrainingRate(None, stated, why)
    price = account.money.price_usd_per_hour if stated is None else stated
    return TrainingRate(account.tokens.non_padding_tokens_per_second, price, f"as the run in {directory}")
