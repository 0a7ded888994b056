"""``hf-efficient env``: versions and hardware; what the hardware does, measured."""

import dataclasses
import logging
from typing import Annotated

from typer import Option

from hf_efficient.cli.output import print_json
from hf_efficient.records.device import Calibration
from hf_efficient.text import flops

logger = logging.getLogger(__name__)


def env(
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    calibrate: Annotated[
        bool,
        Option(
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
    from hf_efficient.reporting.run_rows import machine_rows

    versions = [(name, version or "not installed") for name, version in found["versions"].items()]
    rows = [*versions, *machine_rows(found)]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def _calibrate(as_json: bool) -> None:
    from hf_efficient.profilers.calibration import calibrate, device_name, devices, save_calibration

    found_all = []
    for device in devices():
        logger.info("Measuring %s ...", device_name(device))
        found = calibrate(device)
        path = str(save_calibration(found))
        found_all.append({**dataclasses.asdict(found), "path": path})
        if not as_json:
            print("\n".join([*calibration_lines(found), f"  kept in {path}"]))
    if as_json:
        print_json({"calibrations": found_all})


def calibration_lines(calibration: Calibration) -> list[str]:
    threads = {None: "", 1: ", 1 thread"}.get(calibration.threads, f", {calibration.threads} threads")
    memory = f"{calibration.bandwidth_bytes_per_second / 1e9:,.1f} GB/s"
    fastest = {one.dtype: one for one in calibration.matmul}
    fastest |= {one.dtype: one for one in sorted(calibration.matmul, key=lambda rate: rate.flops_per_second)}
    launch = f"{calibration.launch_seconds * 1e6:.2f} us"
    lines = [
        f"{calibration.device_name}{threads}, torch {calibration.torch_version}, {calibration.measured_on}",
        *(
            f"  matmul {rate.dtype}  {flops(rate.flops_per_second)}FLOP/s, at {rate.size} x {rate.size}"
            for rate in fastest.values()
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
