"""The work of a step by operator, and the rates that a device was measured to do it at."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

OperatorFamily = Literal[
    "matmul", "attention", "elementwise", "reduction", "embedding", "optimizer", "copy", "other"
]  # fmt: skip
OPERATOR_FAMILIES: tuple[OperatorFamily, ...] = get_args(OperatorFamily)


@dataclass(frozen=True)
class OperatorWork:
    """One operator at one shape, all its calls together; a call's share is the sum over ``calls``.

    Attributes:
        family: what bounds it: ``matmul`` and ``attention`` (fused) compute on matrix units, the others move memory.
        dtype: by the names of ``hardware.accelerators.Dtype``; ``tf32`` where products of float32 are allowed to use
            it.
        flops: 2 for each term of a product.
        read_bytes, written_bytes: each tensor counted once.
        calls: from 1; each launches one kernel.

    Raises:
        ValueError: there are no calls, or a count is negative.
    """

    name: str
    family: OperatorFamily
    dtype: str
    flops: int
    read_bytes: int
    written_bytes: int
    calls: int

    def __post_init__(self) -> None:
        if self.calls < 1:
            raise ValueError(f"{self.name}: calls is {self.calls}; an operator that never ran has no work")
        if min(self.flops, self.read_bytes, self.written_bytes) < 0:
            raise ValueError(
                f"{self.name}: flops {self.flops}, read_bytes {self.read_bytes}, written_bytes {self.written_bytes}: "
                "none may be negative"
            )


CALIBRATION_SCHEMA_VERSION = 1


@dataclass(frozen=True)
class MatmulRate:
    """Products of square matrices: ``2 * size ** 3`` operations over the time of one."""

    dtype: str
    size: int
    flops_per_second: float

    @property
    def flops(self) -> int:
        """Of one product."""
        return 2 * self.size**3


@dataclass(frozen=True)
class Calibration:
    """Of one device, on one day.

    Attributes:
        bandwidth_bytes_per_second: bytes read and written by a copy of a large tensor.
        launch_seconds: of the host, for each kernel of a chain of tiny operators.
        busy: others used the device meanwhile, so the true rates may be higher; None where unknown.
    """

    device_name: str
    device_type: Literal["cuda", "cpu"]
    torch_version: str
    measured_on: str
    matmul: tuple[MatmulRate, ...]
    bandwidth_bytes_per_second: float
    launch_seconds: float
    busy: bool | None = None
    threads: int | None = None
    schema_version: int = CALIBRATION_SCHEMA_VERSION

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**dataclasses.asdict(self), "matmul": [dataclasses.asdict(rate) for rate in self.matmul]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Calibration:
        """The record that ``to_json`` wrote.

        Raises:
            ValueError: a key is missing or unknown, a rate is not a positive number, or the schema is another one.
        """
        try:
            if data["schema_version"] != CALIBRATION_SCHEMA_VERSION:
                raise ValueError(
                    f"schema_version {data['schema_version']} is not {CALIBRATION_SCHEMA_VERSION}, which is read here"
                )
            found = cls(**{**data, "matmul": tuple(MatmulRate(**rate) for rate in data["matmul"])})
            rates = [found.bandwidth_bytes_per_second, found.launch_seconds]
            rates += [rate.flops_per_second for rate in found.matmul]
            if not (found.matmul and all(math.isfinite(rate) and rate > 0 for rate in rates)):
                raise ValueError("a calibration's rates are positive numbers, one of them of a product")
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a calibration: {type(error).__name__}: {error}") from error
        return found
