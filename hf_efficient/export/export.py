"""A run as what other programs load: safetensors, GGUF, GPTQ, AWQ, ONNX; read back and compared before it stands."""

import json
import logging
import math
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from peft import PeftModel

from hf_efficient.errors import ModelError, OutputError, SetupError
from hf_efficient.estimate.gguf_size import MIXES, WRITTEN, gguf_bytes, gguf_shape
from hf_efficient.export import agreement, llama_cpp, onnx_file, packed
from hf_efficient.export.agreement import QUESTIONS, Answered, Forward, HeldOut
from hf_efficient.export.gguf_file import check_vocabulary, read_gguf, write_gguf
from hf_efficient.facts.models import licence_of
from hf_efficient.launch import merge
from hf_efficient.launch.merge import TrainedAdapter
from hf_efficient.launch.trained import find_source
from hf_efficient.metrics.answers import end_of_answer_ids
from hf_efficient.model.load import load_dense_base, load_tokenizer, on_accelerator
from hf_efficient.planning.model_config import meta_model, model_config, weights_dtype
from hf_efficient.recipe.schema import ModelSection
from hf_efficient.records import trained_model as rec
from hf_efficient.run_dir.json_file import strict_json
from hf_efficient.text import counted, size

logger = logging.getLogger(__name__)

FORMATS = ("merged", "gguf", "gptq", "awq", "onnx", "ollama", "vllm")
_PACKED = ("gptq", "awq")  # by GPTQModel
_MOST_KL = 0.1
"""Nats that no rounding to 8 bits or more explains; fewer bits may lose any amount."""
_EXACT = (None, "F16", "Q8_0")
_CALIBRATION = 128
"""Training examples that GPTQ or AWQ sees, where the run's data are here."""
_TOKEN_BYTES = 150
"""Of a token in the tokenizer's files at most; Llama 3's has 134."""
_ON_ANSWERS = "warning: calibrated on the trained model's own answers, for the run's training data are not at hand."


class Form(NamedTuple):
    format: str
    quantization: str | None


def parse_form(text: str) -> Form:
    """What ``--to`` names; ``SetupError``: what can be written in its place."""
    name, _, quantization = text.partition(":")
    if name not in FORMATS:
        raise SetupError(f"--to: {name!r} is no form. Write one of {', '.join(FORMATS)}, for instance gguf:Q8_0.")
    if name not in ("gguf", "ollama"):
        if quantization:
            raise SetupError(f"--to: {name} takes no quantization. Write --to {name}, or --to gguf:Q8_0.")
        return Form(name, "4bit" if name in _PACKED else None)
    wanted = quantization.upper() or "Q8_0"
    if wanted not in MIXES:
        near = [f"{name}:{mix}" for mix in MIXES if mix.startswith(wanted)]
        instead = " or ".join(near) or f"one of {', '.join(MIXES)}"
        raise SetupError(f"--to: {quantization!r} is no quantization. Write {instead}.")
    return Form(name, wanted)


def export_sizes(target: str, *, trust_remote_code: bool = False) -> dict[str, int]:
    """Bytes of each form from the configuration of a run, a model or a shipped shape; of GGUF, its tensors."""
    source = find_source(target, trust_remote_code=trust_remote_code)
    section = source.model if isinstance(source, TrainedAdapter) else source
    return section_sizes(section)


def section_sizes(section: ModelSection) -> dict[str, int]:
    forms = {"onnx": Form("onnx", None), **{name: Form(name, "4bit") for name in _PACKED}}
    forms |= {mix: Form("gguf", mix) for mix in MIXES}
    sizes = {"safetensors": _predicted(section, Form("merged", None))}
    for name, form in forms.items():
        with suppress(ModelError):  # which cannot hold this model
            sizes[name] = _predicted(section, form)
    return sizes


def export_run(
    target: str,
    form: Form,
    output: Path | None = None,
    *,
    questions: Sequence[Any] = QUESTIONS,
    max_new_tokens: int = 32,
    evaluate: int = 64,
    python: Path | None = None,
    trust_remote_code: bool = False,
) -> tuple[Path, rec.ExportReport]:
    """Write the export to ``output`` (default: ``TARGET/exports/FORM``), read it back, and compare it with the trained
    model, also on the first ``evaluate`` examples of the recipe's evaluation data. The folder appears whole or not at
    all. An adapter on a quantized base is merged into the dequantized weights; for GGUF and ONNX in float32, 4 bytes a
    parameter. ``python``: one that has GPTQModel. Raises ``SetupError``: what the form needs is not installed;
    ``ModelError``: no trained model, a base that has changed, a model that the form cannot hold, or an export that is
    another model; ``DataError``: a prompt longer than the model's positions; ``OutputError``: no room at ``output``."""
    _check_tools(form, python)
    source = find_source(target, trust_remote_code=trust_remote_code)
    adapter, section = (source, source.model) if isinstance(source, TrainedAdapter) else (None, source)
    output = _place(target, form, output)
    predicted = _predicted(section, form)
    _check_room(output, predicted + _beside(section, form))
    run = Path(target).expanduser()
    recipe = adapter.recipe if adapter else merge.recipe_of_run(run, trust_remote_code=trust_remote_code)
    name = adapter.recipe.name if adapter and adapter.recipe else run.resolve().name
    tokenizer = merge.tokenizer_of(adapter) if adapter else load_tokenizer(section, {})
    trained: Any = load_dense_base(section) if adapter is None else merge.load_unmerged(adapter)
    _check_tokenizer(form, tokenizer, trained.config)
    held = agreement.held_out(recipe, evaluate, _CALIBRATION * (form.format in _PACKED))
    compared = f"{counted(len(questions), 'prompt')} and {counted(len(held.evaluation), 'evaluation example')}"
    logger.info("The trained model answers %s ...", compared)
    asked = _asked(trained, tokenizer, questions, max_new_tokens, held)
    changes = _changes(trained) if adapter else {}
    model = _dense(trained, adapter, "float32" if _is_gguf(form) or form.format == "onnx" else None)
    del trained
    logger.info("Writing %s, %s ...", form.quantization or form.format, size(predicted))
    with merge.written_whole(output) as folder:
        roundings: list[rec.Rounding] = []
        if _is_gguf(form):
            path = folder / f"{name}-{form.quantization}.gguf"
            roundings = write_gguf(path, model, tokenizer, name, str(form.quantization), licence_of(section.id))
        else:
            _write_folder(folder, form, model, tokenizer, asked, python)
        parameters, config = model.num_parameters(), model.config
        del model  # before the next one is loaded
        logger.info("Reading it back, and comparing it on the same ...")
        found, evaluation, remarks = _compared(_read_back(folder, form, section, config, python), tokenizer, asked)
        if form.format in _PACKED and not held.training:
            remarks.append(_ON_ANSWERS)
        _check_agreement(found.kl_mean, form, output)
        if _is_gguf(form):
            found = replace(found, **llama_cpp.compared(path, tokenizer, asked.reference))
        if form.format == "ollama":
            _write_modelfile(folder, tokenizer)
        files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
        total = sum(files.values())
        written = rec.ExportReport(
            rec.EXPORT_VERSION, name, *form, predicted, parameters, total, list(files), found, remarks, evaluation
        )
        report = _with_roundings(written, roundings, changes)
        (folder / rec.EXPORT_JSON).write_text(strict_json(report), encoding="utf-8")
    return output, report


class _Asked(NamedTuple):
    """The questions, what the trained model answered, and its loss on the evaluation data. Of a run with an adapter,
    ``kl_learnt`` is how far these answers are from the model without it, and ``loss_base`` the loss of that."""

    questions: Sequence[Any]
    reference: Sequence[Answered]
    held: HeldOut
    loss: float
    kl_learnt: float | None
    loss_base: float | None


def _asked(trained: Any, tokenizer: Any, questions: Sequence[Any], max_new_tokens: int, held: HeldOut) -> _Asked:
    prompts = agreement.as_prompts(tokenizer, questions)
    agreement.check_lengths(prompts, trained.config, max_new_tokens)
    reference = agreement.answers_of(on_accelerator(trained).eval(), tokenizer, prompts, max_new_tokens)
    if not reference:
        raise ModelError("The model answers none of the prompts, for each answer ends at once. Try hf-efficient chat.")
    forward, learnt, base = agreement.forward_of(trained), None, None
    if isinstance(trained, PeftModel):
        with trained.disable_adapter():
            learnt = agreement.agreement(forward, tokenizer, questions, reference).kl_mean
            base = agreement.loss_of(forward, held.evaluation)[0]
    return _Asked(questions, reference, held, agreement.loss_of(forward, held.evaluation)[0], learnt, base)


def _compared(reading: Any, tokenizer: Any, asked: _Asked) -> tuple[rec.Agreement, rec.Evaluation | None, list[str]]:
    """``reading``: ``_read_back``."""
    rows, missing = asked.held.evaluation, asked.held.missing
    with reading as (forward, read, remarks):
        found = agreement.agreement(forward, read or tokenizer, asked.questions, asked.reference)
        after, tokens = agreement.loss_of(forward, rows)
        del forward
    remarks += [f"Not evaluated: {missing.rstrip('.')}."] * bool(missing)
    found = replace(found, kl_learnt=asked.kl_learnt)
    evaluation = rec.Evaluation(len(rows), tokens, asked.loss, after, asked.loss_base) if rows else None
    return found, evaluation, remarks


def _write_folder(folder: Path, form: Form, model: Any, tokenizer: Any, asked: _Asked, python: Path | None) -> None:
    if form.format in _PACKED:
        rows = asked.held.training or [[*one.prompt.ids, *one.answer] for one in asked.reference]
        packed.quantize(folder, model, tokenizer, rows, python, form.format)
        return
    if form.format == "onnx":
        onnx_file.write_onnx(folder, model)
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _place(target: str, form: Form, output: Path | None) -> Path:
    run = Path(target).expanduser()
    if output is None and not run.is_dir():
        raise OutputError(f"--output: is missing, and {target} is no folder to write in. Add --output DIR.")
    output = output or run / "exports" / "-".join(filter(None, form))
    merge.check_free(output, overwrite=False)
    return output


def _check_tokenizer(form: Form, tokenizer: Any, config: Any) -> None:
    if _is_gguf(form):
        check_vocabulary(tokenizer, config.vocab_size)
    elif form.format == "vllm" and not tokenizer.chat_template:
        raise ModelError("--to: vLLM serves a chat by its template, and this tokenizer has none. Write --to merged.")


def _is_gguf(form: Form) -> bool:
    return form.format in ("gguf", "ollama")


def _check_tools(form: Form, python: Path | None) -> None:
    if form.format in _PACKED:
        packed.check_python(python)
    elif python is not None:
        raise SetupError(f"--python: {form.format} needs no Python of its own. Leave it out.")
    elif form.format == "onnx":
        onnx_file.check_packages()
    elif _is_gguf(form) and form.quantization not in WRITTEN:
        llama_cpp.load_llama_cpp(f"--to: {form.quantization} needs")


def _check_agreement(kl: float, form: Form, output: Path) -> None:
    if not kl <= (_MOST_KL if form.quantization in _EXACT else math.inf):  # so that NaN fails
        raise ModelError(
            f"the exported model, read back, is {kl:.2g} nats from the trained one on its own answers "
            f"(KL), more than rounding explains ({_MOST_KL}). Nothing was written to {output}."
        )


def _write_modelfile(folder: Path, tokenizer: Any) -> None:
    """Ollama takes the chat template from the GGUF file, and not where an answer ends."""
    (path,) = folder.glob("*.gguf")
    ends = [json.dumps(tokenizer.decode([index]), ensure_ascii=False) for index in end_of_answer_ids(tokenizer)]
    text = "\n".join([f"FROM ./{path.name}", *(f"PARAMETER stop {end}" for end in ends)])
    (folder / "Modelfile").write_text(text + "\n", encoding="utf-8")


@contextmanager
def _read_back(
    folder: Path, form: Form, section: ModelSection, config: Any, python: Path | None
) -> Iterator[tuple[Forward, Any, list[str]]]:
    """The export by another reader, its tokenizer, and what that reader needed beside the files."""
    remarks: list[str] = []
    if form.format in _PACKED:
        with packed.opened(folder, python) as forward:
            yield forward, None, remarks
    elif form.format == "onnx":
        yield onnx_file.read_onnx(folder), load_tokenizer(ModelSection(id=str(folder)), {}), remarks
    elif _is_gguf(form):
        (path,) = folder.glob("*.gguf")
        model, tokenizer, given = read_gguf(path, config)
        told = f"transformers' reader leaves {', '.join(given)} out of a GGUF file: given from the run's model."
        remarks += [told] * bool(given)
        yield agreement.forward_of(on_accelerator(model)), tokenizer, remarks
    else:
        again = ModelSection(id=str(folder), trust_remote_code=section.trust_remote_code)
        model = on_accelerator(load_dense_base(again)).eval()
        yield agreement.forward_of(model), load_tokenizer(again, {}), remarks


def _dense(trained: Any, adapter: TrainedAdapter | None, dtype: str | None) -> Any:
    if not getattr(trained, "is_quantized", False):
        trained = trained.cpu()
    if adapter is None:
        return trained.float() if dtype else trained
    return merge.merge_into(merge.undressed(trained, dtype), adapter)


def _changes(trained: Any) -> dict[str, float]:
    """The Frobenius norm of what LoRA adds to each matrix, by its name in the base; DoRA changes more than it adds."""
    return {
        f"{name}.weight": float(module.get_delta_weight("default").detach().float().norm())
        for name, module in trained.get_base_model().named_modules()
        if hasattr(module, "get_delta_weight") and not any(getattr(module, "use_dora", {}).values())
    }


def _with_roundings(
    report: rec.ExportReport, roundings: Sequence[rec.Rounding], changes: Mapping[str, float]
) -> rec.ExportReport:
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


def _predicted(section: ModelSection, form: Form) -> int:
    config = model_config(section)
    if _is_gguf(form):
        return gguf_bytes(gguf_shape(config), str(form.quantization))
    model: Any = meta_model(section, config)
    if form.format in _PACKED:
        return packed.packed_bytes(model, form.format)
    return int((4 if form.format == "onnx" else weights_dtype(section, config).itemsize) * model.num_parameters())


def _beside(section: ModelSection, form: Form) -> int:
    """Bytes of the tokenizer, and of what is written on the way and removed: what another program quantizes."""
    vocabulary = int(model_config(section).get_text_config().vocab_size) * _TOKEN_BYTES
    if form.format in _PACKED:
        return vocabulary + _predicted(section, Form("merged", None))
    between = _predicted(section, Form("gguf", "F16")) if form.quantization not in (*WRITTEN, None) else 0
    return vocabulary + between


def _check_room(output: Path, wanted: int) -> None:
    place = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if free < wanted:
        raise OutputError(f"--output: {output} needs {size(wanted)}, and {size(free)} are free there. Make room first.")
