"""One run of a variant in processes of its own, which do not outlive it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from hf_efficient.isolate.variant import Variant
from hf_efficient.isolate.worker import MEASUREMENT
from hf_efficient.launch.command import accelerate_command
from hf_efficient.launch.engines.layout import layout_of
from hf_efficient.launch.family import ended
from hf_efficient.recipe.schema import Recipe
from hf_efficient.records.isolation import VariantMeasurement

__all__ = ["Launch", "VariantFailed", "run_variant"]

_WORKER = "hf_efficient.isolate.worker"
_SAID = 400


class VariantFailed(Exception):
    """A run of a variant came to no end; ``str`` says why."""


@dataclass(frozen=True)
class Launch:
    """How the variants of a recipe are launched.

    Attributes:
        recipe: resolved.
        argument: the recipe as the user wrote it.
        overrides: ``a.b=value`` as the user wrote them.
        steps: to be measured.
        warm_up: steps before them.
        parent: folder in which each run makes one of its own.
        device_count: accelerators of this machine, for ``distributed.processes: auto``.
        cores: processor cores that all processes share.
    """

    recipe: Recipe
    argument: str
    overrides: Sequence[str]
    steps: int
    warm_up: int
    parent: Path
    device_count: int
    cores: int

    @property
    def processes(self) -> int:
        """Of the recipe, here."""
        said = self.recipe.distributed.processes
        return max(1, self.device_count) if said == "auto" else said

    @property
    def threads(self) -> int:
        """That each process computes with; one that is alone gets no more, or it would not be the same computation."""
        return max(1, self.cores // self.processes)

    def command(self, variant: Variant, folder: Path) -> list[str]:
        """What measures a variant: several processes by accelerate; a single one needs no launcher, which would only
        import torch a second time.
        """
        options = [
            f"--variant={variant.name}",
            f"--steps={self.steps}",
            f"--warm-up={self.warm_up}",
            f"--share={self.processes if variant.one_process else 1}",
            f"--folder={folder}",
        ]
        if self.processes == 1 or variant.one_process:
            return [sys.executable, "-m", _WORKER, self.argument, *self.overrides, *options]
        return accelerate_command(
            self.recipe,
            self.argument,
            [*self.overrides, *options],
            layout_of(self.recipe, device_count=self.device_count, cores=self.cores),
            module=_WORKER,
        )


def run_variant(variant: Variant, launch: Launch) -> VariantMeasurement:
    """Run it once, and wait for it.

    Raises:
        VariantFailed: it failed, with what it said.
    """
    with tempfile.TemporaryDirectory(prefix=f"{variant.name}-", dir=launch.parent) as name:
        folder = Path(name)
        said = folder / "said.txt"
        with said.open("wb") as output:
            code = _finished(launch.command(variant, folder), launch.threads, output.fileno())
        try:
            held = json.loads((folder / MEASUREMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise VariantFailed(_unsaid(code, said)) from None
        if "failure" in held:
            raise VariantFailed(str(held["failure"]))
        return TypeAdapter(VariantMeasurement).validate_python(held)


def _finished(command: list[str], threads: int, output: int) -> int:
    """Its exit code; on the way out, whatever the way, none of its processes is left."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}  # as accelerate's launcher says it
    launcher = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
    )
    with ended(launcher):
        return launcher.wait()


def _unsaid(code: int, said: Path) -> str:
    """Why a process that left no reason ended, as far as it can be told."""
    if code in (-9, 137):
        return "it was killed, for want of memory perhaps"
    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    if any("SIGKILL" in line or "Signal 9" in line for line in lines):
        return "a process of it was killed, for want of memory perhaps"
    return f"exit code {code}{': ' + lines[-1].strip()[:_SAID] if lines else ', and it said nothing'}"
