"""A run as what other programs load: safetensors, GGUF, Ollama, vLLM; read back and compared before it stands."""

import json
import math
import shutil
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from hf_efficient.errors import ModelError, OutputError, SetupError
from hf_efficient.estimate.gguf_size import MIXES, WRITTEN, gguf_bytes, gguf_shape
from hf_efficient.export.gguf_file import read_gguf, write_gguf
from hf_efficient.export.proof import QUESTIONS, Answered, agreement, answers_of, as_prompts, llama_cpp_agreement
from hf_efficient.export.vocabulary import check_vocabulary
from hf_efficient.facts.models import licence_of
from hf_efficient.launch import merge
from hf_efficient.launch.merge import TrainedAdapter
from hf_efficient.launch.trained import find_source, on_accelerator
from hf_efficient.metrics.answers import end_of_answer_ids
from hf_efficient.model.load import load_dense_base, load_tokenizer
from hf_efficient.planning.model_config import meta_model, model_config, weights_dtype
from hf_efficient.recipe.schema import ModelSection
from hf_efficient.records.trained_model import EXPORT_JSON, EXPORT_VERSION, Agreement, ExportReport, Rounding
from hf_efficient.run_dir.json_file import strict_json
from hf_efficient.text import size

FORMATS = ("merged", "gguf", "ollama", "vllm")
_MOST_KL = 0.1
"""Nats that no rounding to 8 bits or more explains; four bits may lose any amount."""


class Form(NamedTuple):
    format: str
    quantization: str | None


def parse_form(text: str) -> Form:
    """What ``--to`` names; ``SetupError``: what can be written in its place."""
    name, _, quantization = text.partition(":")
    if name not in FORMATS:
        raise SetupError(f"--to: {name!r} is no form. Write one of {', '.join(FORMATS)}, for instance gguf:Q8_0.")
    if name in ("merged", "vllm"):
        if quantization:
            raise SetupError(f"--to: {name} has no quantization. Write --to {name}, or --to gguf:{quantization}.")
        return Form(name, None)
    wanted = quantization.upper() or "Q8_0"
    if wanted in WRITTEN:
        return Form(name, wanted)
    written = ", ".join(WRITTEN)
    if wanted in MIXES:
        raise SetupError(
            f"--to: {wanted} needs llama.cpp's compiled code. Write one of {written}; or --to {name}:F16, and then "
            f"`llama-quantize FILE.gguf {wanted}.gguf {wanted}`."
        )
    raise SetupError(f"--to: {quantization!r} is no quantization. Write one of {written}.")


def export_sizes(target: str) -> dict[str, int]:
    """Bytes of each form from the configuration of a run, a model or a shipped shape; of GGUF, its tensors."""
    source = find_source(target)
    section = source.model if isinstance(source, TrainedAdapter) else source
    return {name: _predicted(section, mix) for name, mix in (("safetensors", None), *((mix, mix) for mix in MIXES))}


def export_run(
    target: str,
    form: Form,
    output: Path | None = None,
    *,
    questions: Sequence[Any] = QUESTIONS,
    max_new_tokens: int = 32,
) -> tuple[Path, ExportReport]:
    """Write the export to ``output`` (default: ``TARGET/exports/FORM``), read it back, and compare it with the trained
    model. The folder appears whole or not at all. An adapter on a quantized base is merged into the dequantized
    weights; for GGUF in float32, 4 bytes a parameter. Raises ``ModelError``: no trained model, a base that has changed,
    a model that the form cannot hold, or an export that is another model; ``OutputError``: no room at ``output``."""
    source = find_source(target)
    adapter, section = (source, source.model) if isinstance(source, TrainedAdapter) else (None, source)
    run = Path(target).expanduser()
    if output is None and not run.is_dir():
        raise OutputError(f"--output: {target} is no folder to write to. Add --output DIR.")
    output = output or run / "exports" / "-".join(filter(None, form))
    merge.check_free(output, overwrite=False)
    predicted = _predicted(section, form.quantization)
    _check_room(output, predicted)
    tokenizer = merge.tokenizer_of(adapter) if adapter else load_tokenizer(section, {})
    trained: Any = load_dense_base(section) if adapter is None else merge.load_unmerged(adapter)
    if form.quantization is not None:
        check_vocabulary(tokenizer, trained.config.vocab_size)
    elif form.format == "vllm" and not tokenizer.chat_template:
        raise ModelError("--to: vLLM serves a chat by its template, and this tokenizer has none. Write --to merged.")
    reference = answers_of(on_accelerator(trained).eval(), tokenizer, as_prompts(tokenizer, questions), max_new_tokens)
    if not reference:
        raise ModelError(f"{target} answers none of the prompts, for each answer ends at once. Try hf-efficient chat.")
    name = adapter.recipe.name if adapter and adapter.recipe else run.resolve().name
    changes = _changes(trained) if adapter else {}
    model = _dense(trained, adapter, "float32" if form.quantization else None)
    del trained
    with merge.written_whole(output) as folder:
        roundings = _write(folder, model, tokenizer, form, name, licence_of(section.id))
        parameters, config = model.num_parameters(), model.config
        del model  # before the next one is loaded
        found, remarks = _compared(folder, form, section, config, questions, reference)
        if not found.kl_mean <= (math.inf if form.quantization == "Q4_0" else _MOST_KL):  # so that NaN fails
            raise ModelError(
                f"the exported model, read back, is {found.kl_mean:.2g} nats from the trained one on its own answers "
                f"(KL), more than rounding explains ({_MOST_KL}). Nothing was written to {output}."
            )
        if form.format == "ollama":
            _write_modelfile(folder, tokenizer)
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        written = ExportReport(
            EXPORT_VERSION, name, *form, predicted, parameters, sum(files.values()), list(files), found, remarks
        )
        report = _with_roundings(written, roundings, changes)
        (folder / EXPORT_JSON).write_text(strict_json(report), encoding="utf-8")
    return output, report


def _write(folder: Path, model: Any, tokenizer: Any, form: Form, name: str, licence: str | None) -> list[Rounding]:
    if form.quantization is not None:
        path = folder / f"{name}-{form.quantization}.gguf"
        return write_gguf(path, model, tokenizer, name, form.quantization, licence)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return []


def _write_modelfile(folder: Path, tokenizer: Any) -> None:
    """Ollama takes the chat template from the GGUF file, and not where an answer ends."""
    (path,) = folder.glob("*.gguf")
    ends = [json.dumps(tokenizer.decode([index]), ensure_ascii=False) for index in end_of_answer_ids(tokenizer)]
    text = "\n".join([f"FROM ./{path.name}", *(f"PARAMETER stop {end}" for end in ends)])
    (folder / "Modelfile").write_text(text + "\n", encoding="utf-8")


def _compared(
    folder: Path,
    form: Form,
    section: ModelSection,
    config: Any,
    questions: Sequence[Any],
    reference: Sequence[Answered],
) -> tuple[Agreement, list[str]]:
    """The export, read back, beside the trained model's answers; and what the reader needed beside the file."""
    if form.quantization is None:
        again = ModelSection(id=str(folder), trust_remote_code=section.trust_remote_code)
        model, tokenizer = load_dense_base(again), load_tokenizer(again, {})
        return agreement(on_accelerator(model).eval(), tokenizer, questions, reference), []
    (path,) = folder.glob("*.gguf")
    model, tokenizer, given = read_gguf(path, config)
    found = agreement(on_accelerator(model), tokenizer, questions, reference)
    del model
    told = f"transformers' reader leaves {', '.join(given)} out of a GGUF file: given from the run's model."
    engine = llama_cpp_agreement(path, tokenizer, reference)
    return replace(found, llama_cpp_same_answers=engine), [told] * bool(given)


def _dense(trained: Any, adapter: TrainedAdapter | None, dtype: str | None) -> Any:
    if not getattr(trained, "is_quantized", False):
        trained = trained.cpu()
    if adapter is None:
        return trained.float() if dtype else trained
    return merge.merge_into(merge.undressed(trained, dtype), adapter)


def _changes(trained: Any) -> dict[str, float]:
    """The Frobenius norm of what LoRA adds to each matrix, by its name in the base; DoRA changes more than it adds."""
    return {
        f"{name}.weight": float(module.get_delta_weight("default").float().norm())
        for name, module in trained.get_base_model().named_modules()
        if hasattr(module, "get_delta_weight") and not any(getattr(module, "use_dora", {}).values())
    }


def _with_roundings(report: ExportReport, roundings: Sequence[Rounding], changes: Mapping[str, float]) -> ExportReport:
    adapted = [replace(one, change=changes[one.tensor]) for one in roundings if changes.get(one.tensor)]
    if not adapted:
        return report
    ratios = sorted(((one.rounding / (one.change or 1.0), one) for one in adapted), key=lambda pair: -pair[0])
    return replace(
        report,
        adapted=len(adapted),
        lost=sum(ratio > 1 for ratio, _ in ratios),
        rounding_to_change=statistics.median(ratio for ratio, _ in ratios),
        worst=[one for _, one in ratios[:5]],
    )


def _predicted(section: ModelSection, quantization: str | None) -> int:
    config = model_config(section)
    if quantization is not None:
        return gguf_bytes(gguf_shape(config), quantization)
    return weights_dtype(section, config).itemsize * meta_model(section, config).num_parameters()


def _check_room(output: Path, wanted: int) -> None:
    place = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise OutputError(f"--output: {output} needs {size(wanted)}, and {size(free)} are free there. Make room first.")
