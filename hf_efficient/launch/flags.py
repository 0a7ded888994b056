"""The command line of a run, the same for ``hf_efficient.train`` and ``hf-efficient train``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["STATUS_FILE", "RunFlags", "parse_flags"]

STATUS_FILE = "HF_EFFICIENT_STATUS_FILE"
"""Environment variable: the file in which a run that fails leaves its exit code."""


@dataclass(frozen=True)
class RunFlags:
    """What was asked for.

    Attributes:
        recipe: path or shipped name.
        overrides: ``a.b=value`` as typed, those that flags stand for included.
        debug: show tracebacks and the libraries' messages.
        preflight: do this part of the proof before the run, in place of the run.
    """

    recipe: str
    overrides: tuple[str, ...]
    debug: bool
    preflight: Literal["save", "load"] | None = None


def parse_flags(arguments: Sequence[str]) -> RunFlags:
    """Read the command line; leaves by ``SystemExit(2)`` with a usage line where it is wrong."""
    parser = argparse.ArgumentParser(
        prog="accelerate launch -m hf_efficient.train",
        description="Fine-tune as a recipe says.",
        epilog="example: accelerate launch -m hf_efficient.train quickstart/qlora train.learning_rate=1e-4",
    )
    parser.add_argument("recipe", help="a recipe file, or the name of a shipped one (hf-efficient recipes)")
    parser.add_argument("overrides", nargs="*", metavar="a.b=value", help="values that replace the recipe's")
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument("--resume", action="store_true", help="go on from the last checkpoint in output_dir")
    existing.add_argument("--overwrite", action="store_true", help="replace the run that lies in output_dir")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and the libraries' messages")
    parser.add_argument(
        "--preflight", choices=("save", "load"), help=argparse.SUPPRESS
    )  # of `hf-efficient train`, which starts the one, then the other
    options = parser.parse_intermixed_args(list(arguments))
    overrides = list(options.overrides)
    if options.resume:
        overrides.append("existing_output=resume")
    if options.overwrite:
        overrides.append("existing_output=overwrite")
    return RunFlags(options.recipe, tuple(overrides), options.debug, options.preflight)
