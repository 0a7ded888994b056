"""The breakdown of a trace, made by hand: every part of it is filled."""

from hf_efficient.records import trace as rec

LENGTHS = rec.Percentiles(1e-6, 2e-6, 3e-6, 4e-6, 5e-6)
BUSY = rec.BusyBreakdown(10.0, 6.0, 4.0, 0.4, 4.0, rec.IdleSplit(2.5, 1.0, 0.5, 0.0, 7, 8, 9))
DEVICE = rec.DeviceBreakdown(
    device=0, name="NVIDIA Test GPU", first_event_seconds=0.5, busy=BUSY,
    families=(rec.FamilyTime("matmul", 3.0, 0.75, 10), rec.FamilyTime("copy", 1.0, 0.25, 4)),
    kernels=(rec.KernelTime("a" * 90, "a" * 90, "matmul", 3.0, 0.75, 10, 0.3, "aten::mm"),),
    launches=rec.LaunchBreakdown(1200, 120.0, 200, LENGTHS, 1e-5, 0.25, 0.125, 0.02, LENGTHS, LENGTHS),
    copies=(
        rec.CopyKind("HtoD", "pageable", 4, 1.0, 4_000_000_000, 4e9, 3, 1.5),
        rec.CopyKind("DtoD", None, 1, 1e-3, None, None, 0, None),
    ),
    communication=rec.Communication(60, 2.0, 0.5, 1.5, 0.25, 0.15),
    gaps=(
        rec.DeviceGap(1.25, 0.75, "host_bound", "a", "b", (("loader.py(7): fetch", 0.8),), 5),
        rec.DeviceGap(2.0, 0.5, "other", "a", "b", (), None),
    ),
)  # fmt: skip
TRACE = rec.TraceBreakdown(
    file=rec.TraceFile(
        "run/trace.json.gz", 2 << 20, 12_345, 0, False, 1, 2, "nccl", {0: "NVIDIA Test GPU"}, True
    ),
    window_seconds=12.0,
    devices=(DEVICE,),
    host=rec.HostBreakdown(
        threads=1, operator_seconds=2.0, families=(rec.FamilyTime("matmul", 2.0, 1.0, 3),),
        operators=(rec.OperatorTime("aten::mm", "matmul", 2.0, 1.0, 2.5, 3),),
    ),
    syncs=(rec.SyncSite("cudaStreamSynchronize", "aten::item", "train.py:12 (f)", 20, 1.5, 0.2, 0.5, 0),),
    steps=(rec.TraceStep(5, 0.0, 8.0, 4.0, 20, 1.5), rec.TraceStep(6, 8.0, 4.0, 1.0, 0, 0.0)),
    remarks=("Mind this.",),
)  # fmt: skip
