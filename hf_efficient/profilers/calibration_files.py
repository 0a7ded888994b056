"""Where calibrations are kept: a file for each device in the user's cache. It loads no torch."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path

from hf_efficient.errors import SetupError, first_line
from hf_efficient.facts.tables import cache_dir
from hf_efficient.records.device import Calibration

logger = logging.getLogger(__name__)


def load_calibration(device_name: str) -> Calibration | None:
    """What this user measured last on a device of this name; None where there is nothing, or it cannot be read."""
    path = _path(device_name)
    try:
        found = Calibration.from_json(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        logger.warning("%s is not read: %s. Measure again: hf-efficient env --calibrate", path, first_line(error))
        return None
    return found if found.device_name == device_name else None


def save_calibration(calibration: Calibration) -> Path:
    """Keep it in place of an earlier one of the same device.

    Returns:
        The file.

    Raises:
        SetupError: the cache cannot be written.
    """
    path = _path(calibration.device_name)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(calibration.to_json(), indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise SetupError(
            f"{path} cannot be written: {error.strerror or error}. Set HF_EFFICIENT_CACHE to a folder that can be."
        ) from error
    return path


def _path(device_name: str) -> Path:
    plain = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return cache_dir() / "calibrations" / f"{plain or 'device'}.json"
