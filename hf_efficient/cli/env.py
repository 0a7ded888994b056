"""``hf-efficient env``: versions and hardware; what the hardware does, measured."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_efficient.cli.output import print_json
from hf_efficient.text import flops

if TYPE_CHECKING:
    from hf_efficient.records.device import Calibration, MatmulRate

logger = logging.getLogger(__name__)


def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure the GPUs and the CPU instead (matrix products, memory, launches), and keep it for plans.",
        ),
    ] = False,
) -> None:
    """Print versions and hardware, to paste into a bug report.

    Example: hf-efficient env --json
    """
    if calibrate:
        _calibrate(as_json)
        return
    from hf_efficient.facts.environment import describe_environment

    found = describe_environment()
    if as_json:
        print_json(found)
        return
    rows = _rows(found)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def _calibrate(as_json: bool) -> None:
    from hf_efficient.profilers.calibration import benches, calibrate, save_calibration

    found_all = []
    for bench in benches():
        logger.info("Measuring %s ...", bench.name)
        found = calibrate(bench)
        path = str(save_calibration(found))
        found_all.append({**dataclasses.asdict(found), "path": path})
        if not as_json:
            print("\n".join([*calibration_lines(found), f"  kept in {path}"]))
    if as_json:
        print_json({"calibrations": found_all})


def calibration_lines(calibration: Calibration) -> list[str]:
    threads = {None: "", 1: ", 1 thread"}.get(calibration.threads, f", {calibration.threads} threads")
    memory = f"{calibration.bandwidth_bytes_per_second / 1e9:,.1f} GB/s"
    launch = f"{calibration.launch_seconds * 1e6:.2f} us"
    lines = [
        f"{calibration.device_name}{threads}, torch {calibration.torch_version}, {calibration.measured_on}",
        *(
            f"  matmul {rate.dtype}  {flops(rate.flops_per_second)}FLOP/s, at {rate.size} x {rate.size}"
            for rate in _fastest(calibration)
        ),
        f"  memory       {memory}, read and written by a copy",
        f"  launch       {launch} of the host for each kernel",
    ]
    if calibration.busy:
        lines.append(
            "  Other processes used it at the same time: these figures are uncertain. Measure again when it is idle."
        )
    elif calibration.busy is None:
        lines.append("  Whether other processes used it at the same time is not known.")
    return lines


def _fastest(calibration: Calibration) -> list[MatmulRate]:
    rising = sorted(calibration.matmul, key=lambda rate: rate.flops_per_second)
    best = {rate.dtype: rate for rate in rising}
    return [best[name] for name in dict.fromkeys(rate.dtype for rate in calibration.matmul)]


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    physical, logical, usable = (_or_unknown(found[f"{kind}_cores"]) for kind in ("physical", "logical", "usable"))
    gpus, commit = found["gpus"], found["git_commit"]
    rows = [
        *((name, version or "not installed") for name, version in found["versions"].items()),
        ("python", found["python"]),
        ("platform", found["platform"]),
        ("cpu", _or_unknown(found["cpu"])),
        ("cores", f"{physical} physical, {logical} logical, {usable} usable"),
        ("memory", _gib(found["memory_bytes"])),
        *((f"gpu {index}", _gpu(**gpu)) for index, gpu in enumerate(gpus or ())),
    ]
    if not gpus:
        rows.append(("gpu", "unknown: torch cannot be imported" if gpus is None else "none that torch can use"))
    rows.append(("driver", found["driver"] or "none found"))
    rows.append(("cuda", found["cuda"] or "none: torch is built without it, or missing"))
    dirty = " with changes" if found["git_dirty"] else ""
    return [*rows, ("git", f"{commit}{dirty}" if commit else "no repository here")]


def _gpu(name: str, memory_bytes: int, capability: str | None) -> str:
    return f"{name}, {_gib(memory_bytes)}{f', capability {capability}' if capability else ''}"


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _or_unknown(value: object) -> str:
    return "unknown" if value is None else str(value)
