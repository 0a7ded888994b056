"""What a process takes of a GPU's memory beside its tensors: the CUDA context, and the workspace of cuBLAS."""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 1 << 20
_KIB = 1 << 10


@dataclass(frozen=True)
class ContextBytes:
    """What the process holds outside of the allocator.

    Attributes:
        bytes: of device memory.
        estimated: whether it is one figure for all devices rather than one of this device.
        source: where it was read.
        date: the day of the measurement.
    """

    bytes: int
    estimated: bool
    source: str
    date: str


CONTEXT = ContextBytes(
    bytes=426 * _MIB,
    estimated=True,
    source="https://github.com/unslothai/unsloth-zoo/pull/1053 (PyTorch 2.10.0+cu130, RTX 6000 Ada, nvidia-smi: 426 MiB"
    " after torch.cuda.mem_get_info(0), with nothing allocated)",
    date="2026-08-12",
)
"""One measured context, taken for every NVIDIA device, and therefore an estimate.

The context differs with device, driver and CUDA version, and grows as kernels are loaded, each at its first use ("Lazy
Loading" in the CUDA Programming Guide; on by default since CUDA 12.2). Other figures of contexts with lazy loading:
about 300 MB (https://github.com/pytorch/pytorch/issues/107667, 2023-08-28) and about 400 MB
(https://github.com/pytorch/pytorch/issues/109888, 2023-09-23). NCCL's buffers come on top.

On a machine with the device, and no other process on it, the figure is ``total - free`` of
``torch.cuda.mem_get_info()`` less ``torch.cuda.memory_reserved()``.
"""


def cublas_workspace_bytes(compute_capability: tuple[int, int]) -> int:
    """What PyTorch allocates for cuBLAS at the first matrix product, through the caching allocator, and never frees.

    Compute capabilities 9, 10 and 12 (Hopper, Blackwell): ``:4096:8``, 4096 KiB * 8 = 32 MiB. Others:
    ``:4096:2:16:8``, 4096 KiB * 2 + 16 KiB * 8 = 8,519,680 bytes. ``CUBLAS_WORKSPACE_CONFIG`` overrides both.

    There is one per cuBLAS handle and stream, and a thread has a handle of its own (``DeviceThreadHandlePool``). The
    backward pass runs in a thread of its own, so a training step has two; that is read from the source, not measured.

    Source: pytorch ``aten/src/ATen/cuda/CublasHandlePool.cpp``, ``parseChosenWorkspaceSize``, ``getNewWorkspace``. Its
    older releases give the 32 MiB to capability 9.0 alone. cuBLASLt shares this workspace
    (``TORCH_CUBLASLT_UNIFIED_WORKSPACE``, the default; documented in torch 2.13's ``torch/backends/cuda/__init__.py``);
    releases without that allocate another 1 MiB or more for it.

    Args:
        compute_capability: as ``torch.cuda.get_device_capability()`` tells it.
    """
    major, _ = compute_capability
    return 4096 * _KIB * 8 if major in (9, 10, 12) else 4096 * _KIB * 2 + 16 * _KIB * 8


def nccl_bytes(ranks: int) -> int:
    """What NCCL's communicator takes of a device, outside of the allocator: 342 MiB with two ranks, 392 with more.

    An estimate, whatever the device. Source: NVIDIA's aiconfigurator, ``nccl_mem`` of all its systems of NVIDIA GPUs
    ("nonofficial correction based on observations"), at commit 095f58a, 2026-11-20; it has no figure between 2 and 4.

    Args:
        ranks: that communicate; one alone has no communicator.
    """
    if ranks < 2:
        return 0
    return (342 if ranks == 2 else 392) * _MIB
