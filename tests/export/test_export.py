"""A run as GGUF, for Ollama and vLLM: what is in the file, what it is worth, and what cannot be exported."""

import importlib.util
import itertools
import json
import shutil
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
import torch
import yaml
from export_models import CHATML, CONFIGS, lora_run, model_folder, sentencepiece_tokenizer
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, GemmaConfig, GemmaForCausalLM

from hf_efficient.cli.app import main
from hf_efficient.errors import DataError, ModelError, OutputError, SetupError
from hf_efficient.export import agreement, gguf_file, onnx_file
from hf_efficient.export import export as export_module
from hf_efficient.export.export import Form, export_run, export_sizes, parse_form
from hf_efficient.launch.merge import merge_run
from hf_efficient.model.source import weights_mark
from hf_efficient.recipe.schema import ModelSection, Recipe
from hf_efficient.records.trained_model import EXPORT_VERSION, Evaluation, ExportReport
from hf_efficient.reporting.trained_model import export_lines
from hf_efficient.run_dir.json_file import read_record

QUESTIONS = (
    "How much is 12 + 345?",
    "The lazy dog",
    [{"role": "system", "content": "fox"}, {"role": "user", "content": "?"}],
)


@pytest.fixture
def base(tmp_path):
    return model_folder(tmp_path / "base")


@pytest.fixture
def run(base, tmp_path):
    return lora_run(base, tmp_path / "run")


def export(target, to="gguf:F16", **how):
    how = {"questions": QUESTIONS, "max_new_tokens": 6, **how}
    return export_run(str(target), parse_form(to), **how)


def tensors(folder):
    (path,) = folder.glob("*.gguf")
    return {one.name: one for one in gguf.GGUFReader(path).tensors}


def fields(folder):
    (path,) = folder.glob("*.gguf")
    return {name: one.contents() for name, one in gguf.GGUFReader(path).fields.items()}


@pytest.mark.parametrize("kind", CONFIGS)
def test_transformers_reads_back_the_model_that_was_trained(kind, tmp_path):
    run = lora_run(model_folder(tmp_path / "base", kind), tmp_path / "run")
    folder, report = export(run)
    found = report.agreement
    assert (found.same_answers, found.same_prompts, found.prompts) == (3, 3, 3)
    assert found.top1 == 1.0
    assert found.kl_max < 1e-4
    assert read_record(folder / "export.json", ExportReport, EXPORT_VERSION, "an export") == report
    merged = AutoModelForCausalLM.from_pretrained(merge_run(run, tmp_path / "merged").output, dtype=torch.float32)
    (path,) = folder.glob("*.gguf")
    again, tokenizer, given = gguf_file.read_gguf(path, merged.config)
    ids = torch.tensor([[5, 80, 33, 120, 7, 61, 200, 42]])
    with torch.no_grad():
        found, wanted = again(ids).logits, merged.eval()(ids).logits
    assert (found - wanted).norm() < 2e-3 * wanted.norm()  # weights of 16 bits
    assert given == {"llama-3.1": ["rope_parameters"], "qwen3": ["head_dim"]}.get(kind, [])
    assert tokenizer.chat_template == CHATML
    assert ("output.weight" in tensors(folder)) is (kind != "llama-tied")


@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_0"])
def test_tensors_equal_those_of_gguf_quants_bit_for_bit(base, quantization, tmp_path):
    folder, report = export(base, f"gguf:{quantization}", output=tmp_path / "out")
    model, written = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tensors(folder)
    kind = gguf.GGMLQuantizationType[quantization]
    layer = model.model.layers[1]
    query = layer.self_attn.q_proj.weight.detach()  # llama.cpp's order: the halves of each head of 16 interleaved
    query = torch.stack([query[16 * head + half * 8 + row] for head in range(4) for row in range(8) for half in (0, 1)])
    for name, weight in (("ffn_down", layer.mlp.down_proj.weight), ("attn_q", query)):
        expected = gguf.quants.quantize(weight.detach().numpy(), kind)
        assert written[f"blk.1.{name}.weight"].tensor_type == kind
        assert (written[f"blk.1.{name}.weight"].data == expected).all()
    assert written["output.weight"].tensor_type == gguf.GGMLQuantizationType.Q8_0
    assert written["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    assert report.predicted_bytes == sum(int(one.n_bytes) for one in written.values())
    assert report.bytes > report.predicted_bytes


def test_metadata_and_tokenizer_of_the_file(run):
    held = fields(export(run, "gguf:Q8_0")[0])
    wanted = {
        "general.architecture": "llama", "general.file_type": int(gguf.LlamaFileType.MOSTLY_Q8_0),
        "llama.block_count": 2, "llama.context_length": 256, "llama.embedding_length": 64,
        "llama.feed_forward_length": 96, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": 16, "llama.rope.freq_base": 10000.0, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": CHATML,
    }  # fmt: skip
    assert {name: held[name] for name in wanted} == wanted
    tokens, types = held["tokenizer.ggml.tokens"], held["tokenizer.ggml.token_type"]
    assert (tokens[2], types[2], types[3]) == ("<|im_end|>", int(gguf.TokenType.CONTROL), int(gguf.TokenType.NORMAL))
    assert (tokens[-1], types[-1]) == (f"[PAD{len(tokens) - 1}]", int(gguf.TokenType.UNUSED))


def test_frequencies_of_llama_3_1_are_divided_as_transformers_scales_them(tmp_path):
    folder = model_folder(tmp_path / "base", "llama-3.1")
    out, report = export(folder, output=tmp_path / "out")
    factors = torch.tensor(tensors(out)["rope_freqs.weight"].data)
    scaled = AutoModelForCausalLM.from_pretrained(folder).model.rotary_emb.inv_freq
    plain = 500000.0 ** -(torch.arange(0, 16, 2) / 16)
    assert torch.allclose(plain / factors, scaled)
    assert factors[-1] == 8.0
    assert fields(out)["tokenizer.ggml.pre"] == "llama-bpe"
    assert report.remarks[0].startswith("transformers' reader leaves rope_parameters out of a GGUF file")


def test_a_small_adapter_is_lost_in_four_bits_and_the_report_says_so(base, tmp_path, capsys):
    run = lora_run(base, tmp_path / "run", std=1e-2)
    _, four = export(run, "gguf:Q4_0")
    _, sixteen = export(run, "gguf:F16")
    assert (four.adapted, four.lost, sixteen.lost) == (14, 14, 0)
    assert four.rounding_to_change > 3
    one = four.worst[0]
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    dense = model.get_parameter(one.tensor).detach().numpy()
    kind = gguf.GGMLQuantizationType.Q4_0
    back = gguf.quants.dequantize(gguf.quants.quantize(dense, kind), kind)
    assert one.rounding == pytest.approx(float(((back - dense) ** 2).sum() ** 0.5), rel=0.02)
    with pytest.raises(SystemExit):
        main(["export", str(run), "--to", "ollama:Q4_0", "--limit", "2", "--max-new-tokens", "3"])
    told = " ".join(capsys.readouterr().out.split())
    assert "warning: the rounding to Q4_0 is larger than the adapter's change in 14 of 14 matrices, and large" in told
    assert "Serve it: ollama create run -f " in told
    assert "warning" not in " ".join(export_lines(tmp_path, sixteen))


def test_a_rounding_that_the_answers_hardly_show_is_no_warning(run, tmp_path):
    """As lab 10 measured it: 99% of what the training took off the loss is kept in 8 bits, 66% in 4."""
    _, report = export(run, "gguf:Q8_0")
    told = {}
    for form, kl in (("Q8_0", 0.0011), ("Q4_0", 0.312)):
        found = replace(report.agreement, kl_mean=kl, kl_learnt=0.42)
        made = replace(report, quantization=form, agreement=found, adapted=210, lost=207, rounding_to_change=1.8)
        told[form] = " ".join(export_lines(tmp_path, made))
    assert "warning" not in told["Q8_0"]
    assert "in the answers: 0.31 nats (KL), where the training moved them by 0.42." in told["Q4_0"]


def test_what_was_learnt_is_the_distance_of_the_answers_from_those_without_the_adapter(base, run):
    _, report = export(run, "gguf:F16")
    model, tokenizer = PeftModel.from_pretrained(reload(base), run).eval(), AutoTokenizer.from_pretrained(base)
    trained, found = model.merge_and_unload(), []
    for prompt in agreement.as_prompts(tokenizer, QUESTIONS):
        ids = trained.generate(torch.tensor([prompt.ids]), max_new_tokens=6, do_sample=False)
        with torch.no_grad():
            ours, theirs = (
                one(ids).logits[0, len(prompt.ids) - 1 : -1].log_softmax(-1) for one in (trained, reload(base))
            )
        found.append((ours.exp() * (ours - theirs)).sum(-1))
    assert report.agreement.kl_learnt == pytest.approx(float(torch.cat(found).mean()), rel=1e-3)
    assert export(base, "merged", output=base.parent / "whole")[1].agreement.kl_learnt is None


def test_a_qlora_adapter_is_merged_into_the_dequantized_weights(base, tmp_path):
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    run = lora_run(base, tmp_path / "run", quantization=four)
    section = {"method": "qlora", "quantization": {"double_quant": False, "compute_dtype": "float32"}}
    write_recipe(run, base, adapter=section)
    assert export(run)[1].agreement.kl_max < 1e-4


def reload(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def write_recipe(run, base, adapter=None, mark=None, data=None):
    model = {"id": str(base), "dtype": "float32"}
    data = data or {"train": [{"path": "chats.jsonl"}]}
    recipe = Recipe(name="tiny", model=model, adapter=adapter or {"method": "lora"}, data=data, output_dir=str(run))
    (run / "efficiency").mkdir()
    held = {"recipe": recipe.resolved(), "provenance": {}, "environment": {"base_weights": mark}}
    (run / "efficiency" / "recipe.resolved.yaml").write_text(yaml.safe_dump(held))


def test_a_base_that_has_changed_since_the_run_is_refused(run, base):
    write_recipe(run, base, mark=weights_mark(ModelSection(id=str(base))))
    assert export(run)[1].model == "tiny"
    torch.manual_seed(9)
    model = AutoModelForCausalLM.from_pretrained(base)
    model.lm_head.weight.data.normal_()
    model.save_pretrained(base)
    with pytest.raises(ModelError, match=r"^the weights in \S+ have changed since the run that trained the adapter\."):
        export(run, "gguf:Q8_0")


def test_safetensors_and_vllm(run, base, tmp_path):
    folder, report = export(run, "vllm")
    assert report.agreement.kl_max < 1e-6
    assert folder == run / "exports" / "vllm"
    assert {"model.safetensors", "config.json", "tokenizer.json", "export.json"} <= {
        one.name for one in folder.iterdir()
    }
    assert report.predicted_bytes == pytest.approx((folder / "model.safetensors").stat().st_size, rel=0.1)
    (base / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="vLLM serves a chat by its template, and this tokenizer has none"):
        export(base, "vllm", questions=("fox",))
    assert not (base / "exports" / "vllm").exists()


def test_llama_cpp_gives_the_same_answers(run):
    pytest.importorskip("cyllama")
    _, report = export(run)
    assert report.agreement.llama_cpp_same_answers == report.agreement.prompts == 3
    assert report.agreement.llama_cpp_ties == 0


@pytest.mark.parametrize(("nats", "ties"), [(0.005, 1), (0.05, 0)])
def test_a_token_that_differs_where_the_trained_model_holds_both_equally_likely_is_a_tie(nats, ties, base, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(base)
    (prompt,) = agreement.as_prompts(tokenizer, ["fox"])
    ours = torch.zeros(2, 8)
    ours[0, 3], ours[0, 4], ours[1, 5] = 2.0, 2.0 - nats, 1.0
    reference = [agreement.Answered(prompt, (3, 5), ours.log_softmax(-1))]

    def theirs(ids):
        logits = torch.zeros(1, ids.shape[1], 8)
        logits[0, -3, 4] = logits[0, -2, 5] = 1.0
        return logits

    found = agreement.agreement(theirs, tokenizer, ["fox"], reference)
    assert (found.top1, found.ties, found.same_answers) == (0.5, ties, 0)
    report = ExportReport(1, "tiny", "gguf", "F16", 1, 1, 1, ["one"], replace(found, llama_cpp_same_answers=0), [])
    told = " ".join(export_lines(tmp_path, report))
    assert ("0 of 1 greedy answers are the same. Of the others, 1 token differs at a tie." in told) is bool(ties)


def test_llama_cpp_differs_at_a_tie(run, monkeypatch):
    llama_cpp = pytest.importorskip("hf_efficient.export.llama_cpp")
    pytest.importorskip("cyllama")
    monkeypatch.setattr(llama_cpp, "greedy", lambda *given: itertools.repeat(7))
    monkeypatch.setattr(llama_cpp, "TIE_NATS", float("inf"))
    _, report = export(run)
    assert (report.agreement.llama_cpp_same_answers, report.agreement.llama_cpp_ties) == (0, 3)
    assert "llama.cpp gives 0 of 3 greedy answers the same. Of the others, 3 answers differ at a tie." in " ".join(
        export_lines(run, report)
    )


def test_the_modelfile_of_ollama(run):
    folder, _ = export(run, "ollama:Q8_0")
    text = (folder / "Modelfile").read_text()
    assert text == 'FROM ./run-Q8_0.gguf\nPARAMETER stop "<|im_end|>"\n'


def test_an_export_that_is_another_model_does_not_stand(run, monkeypatch):
    monkeypatch.setattr(gguf_file, "_interleaved", lambda values, heads: values)
    with pytest.raises(ModelError, match=r"is \S+ nats from the trained one .* Nothing was written to "):
        export(run)
    assert not (run / "exports").exists()


def test_what_cannot_be_exported(run, base, tiny_llama_dir, tmp_path, monkeypatch):
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "head_dim": 16,
    }
    GemmaForCausalLM(GemmaConfig(vocab_size=400, num_key_value_heads=1, **sizes)).save_pretrained(tmp_path / "gemma")
    shutil.copy(base / "tokenizer.json", tmp_path / "gemma")
    shutil.copy(base / "tokenizer_config.json", tmp_path / "gemma")
    with pytest.raises(ModelError, match=r"--to: GGUF files are written for llama, .* is of type gemma"):
        export(tmp_path / "gemma")
    with pytest.raises(ModelError, match="holds a BPE tokenizer with its merges, and this one is BPE without any"):
        export(tiny_llama_dir)
    unfinished = tmp_path / "unfinished" / "checkpoint-7"
    shutil.copytree(run, unfinished)
    with pytest.raises(ModelError, match="which a run saves at its end; its checkpoints do"):
        export(unfinished.parent)
    assert export(unfinished)[0] == unfinished / "exports" / "gguf-F16"
    whole = shutil.copytree(base, tmp_path / "whole" / "checkpoint-9")
    with pytest.raises(ModelError, match=rf"holds no model, which a run saves at its end; .* that is whole: {whole}\."):
        export(whole.parent)
    with pytest.raises(OutputError, match="exports/gguf-F16 is not empty"):
        export(unfinished)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(export_module.shutil, "disk_usage", lambda path: usage(10, 9, 1000))
    with pytest.raises(OutputError, match=r"needs \S+ KiB, and 1000 B are free there\."):
        export(run)
    assert not (run / "exports").exists()


def test_weights_beyond_16_bits_are_refused(base, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(base)
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = 1e6
    model.save_pretrained(base)
    with pytest.raises(ModelError, match=r"layers\.0\.mlp\.up_proj\.weight holds 1e\+06, more than the 16 bits"):
        export(base)
    assert not (base / "exports").exists()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "exl2",
            "--to: 'exl2' is no form. Write one of merged, gguf, gptq, awq, onnx, ollama, vllm, for instance gguf",
        ),
        ("merged:Q8_0", "--to: merged takes no quantization. Write --to merged, or --to gguf:Q8_0."),
        ("awq:3", "--to: awq takes no quantization. Write --to awq, or"),
        ("gguf:q4_k", "--to: 'q4_k' is no quantization. Write gguf:Q4_K_M."),
        ("gptq:3", "--to: gptq takes no quantization. Write --to gptq, or"),
        (
            "ollama:Q9",
            "--to: 'Q9' is no quantization. Write one of F16, Q8_0, Q4_0, Q6_K, Q5_K_M, Q4_K_M, Q3_K_L, Q2_K.",
        ),
    ],
)
def test_forms_that_do_not_exist(text, told):
    with pytest.raises(SetupError) as error:
        parse_form(text)
    assert str(error.value).startswith(told)


def test_sizes_before_anything_is_written(run, capsys):
    assert parse_form("gguf") == Form("gguf", "Q8_0")
    sizes = export_sizes(str(run))
    assert sizes["Q8_0"] == export(run, "gguf:Q8_0")[1].predicted_bytes
    with pytest.raises(SystemExit) as ended:
        main(["export", "meta-llama/Llama-3.1-8B", "--plan"])
    assert ended.value.code in (0, None)
    out = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split()[1:] for line in out.splitlines()}
    published = {"F16": 14.96, "Q8_0": 7.95, "Q6_K": 6.14, "Q5_K_M": 5.33, "Q4_K_M": 4.58, "Q3_K_L": 4.02, "Q2_K": 2.95}
    for mix, gib in published.items():  # llama.cpp's table, tools/quantize/README.md
        assert float(rows[mix][0]) == pytest.approx(gib, rel=0.005)
    assert rows["Q8_0"] == ["7.95", "GiB"]
    assert rows["Q6_K"] == ["6.14", "GiB", "needs", "llama.cpp"]
    assert rows["onnx"] == ["29.92", "GiB", "needs", "onnxruntime"]
    with pytest.raises(SystemExit):
        main(["export", str(run), "--plan", "--json"])
    assert json.loads(capsys.readouterr().out)["predicted_bytes"] == sizes


@pytest.mark.parametrize(
    ("form", "missing", "remedy"),
    [
        ("gguf:Q4_K_M", "cyllama", "--to: Q4_K_M needs llama.cpp. Install it with `pip install cyllama`."),
        ("onnx", "onnxscript", "--to: ONNX needs onnx, onnxscript, onnxruntime. Install with `pip install onnx"),
        ("gptq", "gptqmodel", "gptq/bin/pip install gptqmodel --no-build-isolation"),
    ],
)
def test_what_is_missing_is_named_with_its_pip_line(form, missing, remedy, run, tmp_path, monkeypatch):
    """Before anything is loaded; nothing is downloaded."""
    for name in (missing, "cyllama.llama", "cyllama.llama.llama_cpp"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(onnx_file, "is_installed", lambda name: name.startswith("transformers"))
    monkeypatch.setattr(export_module, "find_source", None)
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'gptqmodel'\" >&2\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(SetupError) as error:
        export(run, form, python=bare if form == "gptq" else None)
    assert remedy in str(error.value)
    assert not (run / "exports").exists()


def test_a_python_for_a_form_that_needs_none_and_one_that_is_not_there(run, tmp_path):
    with pytest.raises(SetupError, match="--python: gguf needs no Python of its own"):
        export(run, python=tmp_path)
    with pytest.raises(SetupError, match=r"--python: .* cannot be started: No such file"):
        export(run, "gptq", python=tmp_path / "nothing")
    with pytest.raises(SetupError, match="--python: /bin/true is no Python"):
        export(run, "gptq", python=Path("/bin/true"))


def test_a_prompt_longer_than_the_positions(run):
    with pytest.raises(DataError, match=r"--prompts: prompt 2 has \d+ tokens, and the model 256 positions .* 6 new"):
        export(run, questions=("fox", "x" * 300))
    assert not (run / "exports").exists()


def test_the_recipe_s_evaluation_before_and_after(run, base, tmp_path, capsys):
    chat = {"messages": [{"role": "user", "content": "12 + 345?"}, {"role": "assistant", "content": "It is 357."}]}
    data = tmp_path / "chats.jsonl"
    data.write_text("\n".join([json.dumps(chat)] * 4))
    write_recipe(run, base, data={"train": [{"path": str(data)}], "eval": [{"path": str(data)}]})
    _, report = export(run, "gguf:Q4_0", evaluate=3)
    found = report.evaluation
    model, tokenizer = PeftModel.from_pretrained(reload(base), run), AutoTokenizer.from_pretrained(base)
    ids = tokenizer.apply_chat_template(chat["messages"], return_tensors="pt", return_dict=True)["input_ids"]
    start = len(tokenizer.apply_chat_template(chat["messages"][:1], add_generation_prompt=True)["input_ids"])
    with torch.no_grad():
        logits = model(ids).logits[0, start - 1 : -1]
    targets = found.tokens // 3  # the last blank is a target or not, by the run's own preparation
    wanted = torch.nn.functional.cross_entropy(logits[:targets], ids[0, start:][:targets])
    assert found.examples == 3
    assert found.loss_before == pytest.approx(float(wanted), rel=1e-5)
    with torch.no_grad(), model.disable_adapter():
        plain = model(ids).logits[0, start - 1 : -1][:targets]
        unadapted = torch.nn.functional.cross_entropy(plain, ids[0, start:][:targets])
    assert found.loss_base == pytest.approx(float(unadapted), rel=1e-5)
    assert found.loss_after != found.loss_before
    assert found.loss_after == pytest.approx(found.loss_before, rel=0.3)
    told = " ".join(export_lines(tmp_path, report))
    assert f"Loss on 3 examples of the recipe's evaluation data: {found.loss_before:.4f} of the trained model" in told
    data.unlink()
    assert "is not on this machine" in export(run, "merged", evaluate=3)[1].remarks[0]


@pytest.mark.parametrize(
    ("unadapted", "after", "kept"), [(3.20, 3.105, "95%"), (3.20, 3.15, "50%"), (3.20, 3.30, "0%"), (3.10, 3.11, None)]
)
def test_what_is_left_of_the_training_in_the_file(run, unadapted, after, kept):
    _, report = export(run, "gguf:F16")
    agreed = replace(report.agreement, kl_mean=0.0, kl_learnt=1.0)  # the answers do not show it
    evaluation = Evaluation(64, 2200, 3.10, after, unadapted)
    found = replace(report, agreement=agreed, evaluation=evaluation, rounding_to_change=0.6)
    told = " ".join(export_lines(run, found))
    assert (f"keeps {kept} of what training gained" in told) is (kept is not None)
    lost = {"50%": "50%", "0%": "200%"}.get(kept)
    assert ("warning: the rounding to F16 takes" in told) is (lost is not None)
    assert lost is None or f"takes {lost} of what training gained on the evaluation data: it is 60% of" in told


@pytest.mark.parametrize("mix", ["Q6_K", "Q5_K_M", "Q4_K_M", "Q3_K_L", "Q2_K"])
def test_k_quants_are_those_of_llama_cpp_and_of_the_plan(mix, tmp_path):
    pytest.importorskip("cyllama")
    base = model_folder(tmp_path / "base", hidden_size=256, intermediate_size=512, num_hidden_layers=8)
    run = lora_run(base, tmp_path / "run", std=1e-3)
    folder, report = export(run, f"gguf:{mix}", questions=QUESTIONS[:1])
    held = tensors(folder)
    assert report.predicted_bytes == sum(int(one.n_bytes) for one in held.values())
    assert (report.adapted, report.lost) == (56, 56)
    assert report.agreement.llama_cpp_same_answers is not None
    assert fields(folder)["general.file_type"] == int(gguf.LlamaFileType[f"MOSTLY_{mix}"])
    assert {one.name for one in folder.iterdir()} == {f"run-{mix}.gguf", "export.json"}
    one = report.worst[0]
    assert one.type in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")
    assert one.rounding > 0


@pytest.mark.slow
def test_onnx_runtime_gives_the_model_that_was_trained(run):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    folder, report = export(run, "onnx")
    assert report.agreement.kl_max < 1e-6
    assert report.agreement.same_answers == 3
    assert {"model.onnx", "model.onnx.data", "config.json", "tokenizer.json"} <= set(report.files)
    assert report.predicted_bytes == pytest.approx((folder / "model.onnx.data").stat().st_size, rel=0.05)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    names = [one.name for one in session.get_inputs()]
    assert names[:2] == ["input_ids", "position_ids"]
    assert len(names) == 2 + 2 * 2  # a cache of keys and values for each layer


WORKER = """
import json, sys
import numpy as np
if sys.argv[3].startswith("import gptqmodel"):
    print("hf-efficient: done")
    raise SystemExit
if sys.argv[3] == "quantize":
    import pathlib, shutil
    asked = json.loads(pathlib.Path(sys.argv[4]).read_text())
    print(asked["method"], asked["group_size"], len(asked["rows"]), file=open(sys.argv[0] + ".asked", "w"))
    shutil.copytree(asked["source"], asked["target"], dirs_exist_ok=True)
else:
    print("noise", flush=True)
    print("hf-efficient: done", flush=True)
    for line in sys.stdin:
        np.save(sys.argv[5], np.zeros((1, len(json.loads(line)), 324), np.float32))
        print("hf-efficient: done", flush=True)
"""


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_gptqmodel_runs_in_a_python_of_its_own(run, base, tmp_path, method):
    """In place of GPTQModel a program that knows nothing: each token is as likely as any other."""
    script, python = tmp_path / "worker.py", tmp_path / "python"
    script.write_text(WORKER)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    python.chmod(0o755)
    folder, report = export(run, method, python=python)
    assert (tmp_path / "worker.py.asked").read_text().split() == [method, "32", "3"]
    assert report.quantization == "4bit"
    assert report.agreement.kl_mean > 0.1  # four bits may lose any amount, and the report has it
    assert "warning: calibrated on the trained model's own answers" in report.remarks[0]
    assert {"model.safetensors", "tokenizer.json"} <= set(report.files)
    assert [one.name for one in (run / "exports").iterdir()] == [folder.name]
    data = tmp_path / "chats.jsonl"
    chat = {"messages": [{"role": "user", "content": "12 + 345?"}, {"role": "assistant", "content": "It is 357."}]}
    data.write_text("\n".join([json.dumps(chat)] * 5))
    write_recipe(run, base, data={"train": [{"path": str(data)}]})
    _, report = export(run, method, output=tmp_path / "on_examples", python=python, evaluate=0)
    assert (tmp_path / "worker.py.asked").read_text().split() == [method, "32", "5"]
    assert report.remarks == []
    script.write_text(WORKER.replace("import pathlib, shutil", "raise ValueError('no room')"))
    with pytest.raises(ModelError, match="GPTQModel cannot write this model: ValueError: no room"):
        export(run, method, output=tmp_path / "other", python=python)
    assert [one.name for one in (run / "exports").iterdir()] == [folder.name]


def test_the_tokenizer_of_the_run_is_the_one_in_the_file(run, base, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = CHATML.replace("<|im_end|>", "<|endoftext|>")
    tokenizer.save_pretrained(run)
    held = fields(export(run)[0])
    assert held["tokenizer.chat_template"] == tokenizer.chat_template
    assert held["tokenizer.ggml.eot_token_id"] == 0


def test_a_sentencepiece_tokenizer_reads_back_with_the_same_tokens(tmp_path):
    tokenizer = sentencepiece_tokenizer()
    base = model_folder(tmp_path / "base", tokenizer=tokenizer)
    folder, report = export(base, output=tmp_path / "out", questions=("The lazy dog, 12", "How much is a fox é?"))
    assert report.agreement.same_prompts == 2
    held = fields(folder)
    assert (held["tokenizer.ggml.model"], held["tokenizer.ggml.add_bos_token"]) == ("llama", False)
    types = held["tokenizer.ggml.token_type"]
    assert [types[index] for index in (0, 1, 2, 3)] == [
        int(gguf.TokenType.UNKNOWN),
        int(gguf.TokenType.CONTROL),
        int(gguf.TokenType.CONTROL),
        int(gguf.TokenType.BYTE),
    ]
    if importlib.util.find_spec("cyllama"):
        assert report.agreement.llama_cpp_same_answers == 2
