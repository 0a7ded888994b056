"""A minimal trace made by hand, and the way to write one; every figure of the tests can be worked out from its picture.

Times are microseconds. One device, two streams, one thread of the host; steps 5 (0 to 1000) and 6 (1000 to 2000)::

    stream 7    A matmul 100-200   B add 205-210   D matmul 258-358   E copy to the host 458-468
                F memset 568-570   G unknown 620-640   H optimizer 640-700   I copy to the device 700-710
    stream 20   C all-reduce 208-308

    submitted   A 80   B 202   C 150   D 160   E 440   F 300   G not in the trace   H 590   I 605

The device runs something in 100-200, 205-358, 458-468, 568-570, 620-710: 100 + 153 + 10 + 2 + 90 = 355 of 610.
Its gaps: 200-205 (short), 358-458 (E was submitted in it), 468-568 (F had been submitted), 570-620 (G: not known).
"""

import gzip
import json
from pathlib import Path
from typing import Any

HEAD = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA Test GPU"}, {"id": 1, "name": "NVIDIA Test GPU"}],
    "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2},
}
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int, float)"
OFFSET = 1_700_000_000_000_000  # torch counts from 1970


def event(cat: str, name: str, start: float, end: float, **more: Any) -> dict[str, Any]:
    """A complete event of the host's thread 1; ``tid`` and ``pid`` may be given, the rest goes to its arguments."""
    place = {"pid": more.pop("pid", 100), "tid": more.pop("tid", 1)}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": OFFSET + start, "dur": end - start, "args": more}


def on_device(cat: str, name: str, start: float, end: float, correlation: int, stream: int = 7, **more: Any) -> Any:
    """An event of device 0."""
    linked = {"device": more.pop("device", 0), "stream": stream, "correlation": correlation, **more}
    return event(cat, name, start, end, pid=0, tid=stream, **linked)


def call(name: str, start: float, end: float, correlation: int, **more: Any) -> dict[str, Any]:
    """A call of the runtime."""
    return event("cuda_runtime", name, start, end, correlation=correlation, **more)


STEPS = [
    event("user_annotation", "ProfilerStep#5", 0, 1000),
    event("user_annotation", "ProfilerStep#6", 1000, 2000),
    event("user_annotation", "Optimizer.step#AdamW.step", 580, 610),
]
OPERATORS = [
    event("cpu_op", "aten::linear", 60, 96),
    event("cpu_op", "aten::mm", 70, 95),
    event("cpu_op", "aten::add", 201, 205),
    event("cpu_op", "aten::item", 430, 480),
    event("cpu_op", "aten::_local_scalar_dense", 435, 478),
]
CALLS = [
    call("cudaLaunchKernel", 80, 90, 1),
    call("cudaLaunchKernel", 202, 204, 2),
    call("cudaLaunchKernel", 150, 155, 3),
    call("cudaLaunchKernel", 160, 165, 4),
    call("cudaMemcpyAsync", 440, 470, 5),
    call("cudaStreamSynchronize", 471, 476, 50),
    call("cudaMemsetAsync", 300, 301, 6),
    call("cudaLaunchKernel", 590, 600, 7),
    call("cudaMemcpyAsync", 605, 608, 8),
    call("cudaDeviceSynchronize", 2100, 2110, 51),
]
DEVICE = [
    on_device("kernel", "ampere_bf16_s16816gemm_bf16_128x128", 100, 200, 1),
    on_device("kernel", ADD, 205, 210, 2),
    on_device("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", 208, 308, 3, stream=20),
    on_device("kernel", "ampere_bf16_s16816gemm_bf16_128x128", 258, 358, 4),
    on_device("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 458, 468, 5, bytes=4096),
    on_device("gpu_memset", "Memset (Device)", 568, 570, 6, bytes=64),
    on_device("kernel", "mystery", 620, 640, 99),
    on_device("kernel", "multi_tensor_apply_kernel", 640, 700, 7),
    on_device("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 700, 710, 8, bytes=1_000_000),
]
# What no figure counts: an arrow, the device's side of a synchronisation and of an annotation, a mark, a name.
IGNORED = [
    {"ph": "s", "id": 1, "pid": 100, "tid": 1, "ts": OFFSET + 80, "cat": "ac2g", "name": "ac2g"},
    on_device("cuda_sync", "Stream Sync", 471, 900, 50),
    event("gpu_user_annotation", "Optimizer.step#AdamW.step", 640, 700, pid=0, tid=7),
    {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": OFFSET + 9000},
    {"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "ts": OFFSET, "args": {"name": "python"}},
]
EVENTS = [*STEPS, *OPERATORS, *CALLS, *DEVICE, *IGNORED]


def trace_text(events: list[Any] = EVENTS, head: dict[str, Any] = HEAD, indent: int | None = 2) -> str:
    """A trace as torch lays it out: what it says about itself, the events, and its name."""
    return json.dumps({**head, "traceEvents": events, "traceName": "made by hand"}, indent=indent)


def write_trace(path: Path, events: list[Any] = EVENTS, head: dict[str, Any] = HEAD) -> Path:
    """Gzipped where the name ends so."""
    data = trace_text(events, head).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
