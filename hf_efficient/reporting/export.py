"""What an export wrote and how far it is from the trained model, and the sizes before it."""

from collections.abc import Mapping
from pathlib import Path

from hf_efficient.records.export import ExportReport
from hf_efficient.text import counted, share, size


def export_lines(path: Path, report: ExportReport) -> list[str]:
    found = report.agreement
    assert found is not None  # of a report that stands
    what = report.format if report.quantization is None else f"{report.format} {report.quantization}"
    lines = [
        f"{path}: {what}, {size(report.bytes)} in {counted(len(report.files), 'file')} (tensors predicted "
        f"{size(report.predicted_bytes)})",
        f"Read back: {share(found.top1)} of {found.positions:,} answer tokens as the trained model's (top-1), KL mean "
        f"{found.kl_mean:.2g}, largest {found.kl_max:.2g} nats; {found.same_answers} of {found.prompts} greedy answers "
        "are the same.",
    ]
    if found.llama_cpp_same_answers is not None:
        lines.append(f"llama.cpp gives {found.llama_cpp_same_answers} of {found.prompts} greedy answers the same.")
    if found.same_prompts < found.prompts:
        lines.append(
            f"warning: the tokenizer read back cuts {found.prompts - found.same_prompts} of {found.prompts} prompts "
            "into other tokens."
        )
    if report.lost and report.rounding_to_change is not None:
        worst = report.worst[0]
        lines.append(
            f"warning: in {report.lost} of {report.adapted} matrices that the adapter changed, the rounding to "
            f"{report.quantization} is larger than the change (median {report.rounding_to_change:.2g} times; most in "
            f"{worst.tensor}). Export with more bits if the answers differ."
        )
    return [*lines, *report.remarks, *_next(path, report)]


def sizes_lines(sizes: Mapping[str, int], written: tuple[str, ...]) -> list[str]:
    needs = {name: "" if name in ("safetensors", *written) else "  needs llama.cpp" for name in sizes}
    return [f"{name:<12}{size(number):>11}{needs[name]}" for name, number in sizes.items()]


def _next(path: Path, report: ExportReport) -> list[str]:
    if report.format == "vllm":
        return [f"Serve it: vllm serve {path} --served-model-name {report.model}"]
    if report.format == "ollama":
        return [f"Serve it: ollama create {report.model} -f {path / 'Modelfile'}"]
    return []
