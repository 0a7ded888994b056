"""The work of a step by operator, and the rates that a device was measured to do it at."""

from dataclasses import dataclass
from typing import Literal

OperatorFamily = Literal["matmul", "attention", "elementwise", "reduction", "embedding", "optimizer", "copy", "other"]


@dataclass(frozen=True)
class OperatorWork:
    """All calls of one operator at one shape, at least one; each launches one kernel. A call's share is the sum over
    ``calls``. ``family``: what bounds it: ``matmul`` and ``attention`` (fused) compute on matrix units, the others move
    memory. ``dtype``: by the names of ``facts.tables.Dtype``; ``tf32`` where products of float32 are allowed to
    use it. ``flops``: 2 for each term of a product. ``read_bytes``, ``written_bytes``: each tensor counted once."""

    name: str
    family: OperatorFamily
    dtype: str
    flops: int
    read_bytes: int
    written_bytes: int
    calls: int


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
    """Of one device, on one day. ``bandwidth_bytes_per_second``: bytes read and written by a copy of a large tensor.
    ``launch_seconds``: of the host, for each kernel of a chain of tiny operators. ``busy``: others used the device
    meanwhile, so the true rates may be higher; None where unknown."""

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
