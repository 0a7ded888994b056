"""``hf-efficient plan``: what it prints, writes and exits with, on a tiny local model."""

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch  # noqa: F401  a process that has loaded it is not the plan's own

from hf_efficient.cli.output import PAGE
from hf_efficient.facts import tables as accelerators_module
from hf_efficient.planning import gpu
from hf_efficient.profilers.calibration import save_calibration
from hf_efficient.recipe.load import load_recipe
from hf_efficient.records.device import Calibration, MatmulRate

MIB = 2**20
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 2048, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 1024, "dtype": "bfloat16",
}  # fmt: skip
TRAIN = """\
train: {max_length: 256, per_device_train_batch_size: 8, gradient_accumulation_steps: 2, gradient_checkpointing: false}
"""


@pytest.fixture
def tiny(recipe, tmp_path):
    """The recipe ``r.yaml`` on a folder that holds a config.json alone."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    text = recipe.read_text(encoding="utf-8").replace("some/model", "./model")
    recipe.write_text(text.replace("train:\n  learning_rate: 2e-4\n", TRAIN), encoding="utf-8")
    return recipe


@pytest.fixture
def shrunk(monkeypatch):
    """An L4 with so many MiB; 426 of them are the CUDA context."""

    def shrink(mebibytes):
        size = {"memory_bytes": mebibytes * MIB, "usable_memory_bytes": mebibytes * MIB}
        known = accelerators_module.accelerators()
        small = tuple(dataclasses.replace(one, **size) if one.name == "L4" else one for one in known)
        monkeypatch.setattr(accelerators_module, "accelerators", lambda: small)

    return shrink


def test_it_fits(run, tiny):
    ended = run("plan", "r.yaml", "--gpu", "L4", "--export", "train.max_steps=3")
    assert ended.code == 0
    assert ended.out.startswith("Fits L4: needs 0.")
    units, lines = {"KiB": 1, "MiB": 1024}, ended.out.partition("Exports of the trained model:")[2].splitlines()[1:]
    sizes = {line[:12].strip(): float(line[12:].split()[0]) * units[line[12:].split()[1]] for line in lines}
    assert sizes["F16"] == pytest.approx(sizes["Q8_0"] * 32 / 17, rel=0.05)  # 16 and 8.5 bits a weight
    assert sizes["onnx"] > 1.9 * sizes["F16"] > sizes["gptq"] > 0
    assert "A step is 2 micro-batches of 8 rows of 256 tokens: 4,096 tokens" in ended.out
    assert "To fit" not in ended.out
    assert "To run faster" not in ended.out


def test_json_is_the_plan_and_nothing_else(run, tiny):
    ended = run("plan", "r.yaml", "--gpu", "L4", "--gpu", "T4", "--gpu", "l4", "--json")
    assert ended.code == 0
    found = json.loads(ended.out)
    assert [one["name"] for one in found["gpus"]] == ["L4", "T4"]
    assert (found["schema_version"], found["advice"], found["largest"]) == (1, None, None)
    assert sum(found["memory"]["categories"].values()) == found["memory"]["peak_allocated_bytes"]


def test_it_does_not_fit_and_what_to_change_is_told(run, tiny, shrunk):
    shrunk(500)
    ended = run("plan", "r.yaml", "--gpu", "L4")
    assert ended.code == 1
    assert "To fit L4 (0.5 GiB), each change simulated, the best first" in ended.out
    assert "train.gradient_checkpointing=true" in ended.out
    assert "each layer's forward is computed twice" in " ".join(ended.out.split())


@pytest.mark.slow
def test_what_the_run_would_refuse_does_not_fit(run, tiny):
    """A T4 has memory enough, and no bfloat16."""
    ended = run("plan", "r.yaml", "--gpu", "T4", "train.bf16=true", "--json")
    (gpu,) = json.loads(ended.out)["gpus"]
    assert (ended.code, gpu["fits"]) == (1, False)
    assert gpu["needed_bytes"] < gpu["usable_memory_bytes"] == round(14.56 * 2**30) < gpu["memory_bytes"] == 16 * 2**30
    assert "plan it with train.fp16=true train.bf16=false" in gpu["notes"][0]
    assert run("plan", "r.yaml", "--gpu", "T4", "train.fp16=true", "--json").code == 0


@pytest.mark.slow
def test_fix_writes_a_recipe_that_validates_and_fits(run, tiny, shrunk):
    shrunk(500)
    ended = run("plan", "r.yaml", "--gpu", "L4", "--fix", "out.yaml", "train.max_steps=3", "--json")
    assert ended.code == 0
    assert "--fix: out.yaml fits L4. Run it: hf-efficient train out.yaml" in ended.err
    best = json.loads(ended.out)["advice"]["changes"][0]
    fixed = load_recipe("out.yaml")
    assert fixed.train == {**load_recipe("r.yaml").train, "max_steps": 3} | {
        key.removeprefix("train."): value for key, value in best["overrides"].items()
    }
    Path("chats.jsonl").write_text('{"text": "a"}\n')
    assert run("validate", "out.yaml").code == 0
    again = run("plan", "out.yaml", "--gpu", "L4", "--json")
    assert again.code == 0
    (gpu,) = json.loads(again.out)["gpus"]
    assert gpu["fits"]
    assert gpu["needed_bytes"] == best["after"]["needed_bytes"]


@pytest.mark.slow
def test_fix_where_nothing_helps(run, tiny, shrunk):
    shrunk(428)
    ended = run("plan", "r.yaml", "--gpu", "L4", "--fix", "out.yaml")
    assert ended.code == 1
    assert "--fix: no change makes it fit L4; nothing is written." in ended.err
    assert "None of them makes it fit: it takes a smaller model or a larger accelerator." in ended.out
    assert not Path("out.yaml").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--gpu", "RTX 4009"], "Did you mean"),
        ("--advise", "--advise: is for one kind of GPU. Name it once: --gpu NAME"),
        ("--largest", "--largest: is for one kind of GPU."),
        ("--fix out.yaml --gpu L4 --gpu T4", "--fix: is for one kind of GPU."),
        ("--gpu cpu --largest", "--largest: is for one kind of GPU."),
        ("--gpu cpu --gpu L4", "--gpu: cpu: is planned alone. Leave it out, or leave the GPUs out."),
        ("--gpu cpu --num-gpus 2", "cpu: is planned for one process, not for 2. Write distributed.processes=1."),
        ("--fix r.yaml --gpu L4", "--fix: r.yaml exists already."),
        ("--fix none/out.yaml --gpu L4", "--fix: there is no folder none."),
        ("--html none/plan.html", "--html: there is no folder none. Name a file in a folder"),
        ("--html .", "--html: . is a folder. Name a file"),
        ("--gpu L4 --num-gpus 0", "--num-gpus: 0 cannot train"),
        ("--gpu L4 --num-gpus 4 distributed.processes=2", "is 4, but distributed.processes=2 was written as well"),
        ("--gpu L4 cost.price_usd_per_hour=-1", "cost.price_usd_per_hour"),
        ("--gpu L4 model.id=nobody/nothing", "Write a local folder that holds its config.json"),
        ("--gpu L4 model.id=./nowhere", "model.id: "),
        (
            "--gpu L4 model.attn_implementation=flash_attention_9",
            "flash_attention_9 is no attention kernel that can be",
        ),
    ],
)
def test_bad_input(run, tiny, arguments, told):
    ended = run("plan", "r.yaml", *(arguments.split() if isinstance(arguments, str) else arguments))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: ")
    assert told in ended.err
    assert "defect" not in ended.err
    assert "max_length: 256" in Path("r.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_most_that_fits(run, tiny, shrunk):
    shrunk(560)
    ended = run("plan", "r.yaml", "--gpu", "L4", "--largest", "--no-advise", "--json")
    largest = json.loads(ended.out)["largest"]
    shown = run("plan", "r.yaml", "--gpu", "L4", "--largest", "--no-advise")
    assert "The most that fits L4" in shown.out
    assert f"train.per_device_train_batch_size={largest['micro_batch_rows']}" in shown.out
    assert f"train.max_length={largest['row_tokens']}" in shown.out


def test_the_page(run, tiny):
    Path("plan.html").write_text(f'{PAGE} 0.1">an older one', encoding="utf-8")
    ended = run("plan", "r.yaml", "--gpu", "L4", "--gpu", "T4", "train.max_steps=3", "--html", "plan.html")
    assert ended.code == 0
    assert ended.out.endswith("The page is plan.html\n")
    text = Path("plan.html").read_text(encoding="utf-8")
    assert "<h1>tiny</h1>" in text
    assert "hf-efficient plan r.yaml train.max_steps=3 --gpu L4 --gpu T4 --html plan.html" in text


@pytest.mark.slow
def test_the_page_beside_json_holds_the_advice(run, tiny):
    ended = run("plan", "r.yaml", "--gpu", "L4", "--advise", "--html", "plan.html", "--json")
    assert json.loads(ended.out)["memory"]["timeline"]["second_step"] > 0
    assert ended.err.endswith("The page is plan.html\n")
    assert "To run faster on L4" in Path("plan.html").read_text(encoding="utf-8")


def test_on_this_machines_cpu(run, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "cpu_model", lambda: "Some CPU")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    ended = run("plan", "r.yaml", "--gpu", "CPU", "train.max_steps=3")
    assert ended.code == 0
    assert ended.out.startswith("Fits Some CPU: needs 0.")
    words = " ".join(ended.out.split())
    assert "no time: this CPU was not calibrated. Run `hf-efficient env --calibrate` once" in words
    assert "memory is that of tensors alone" in words
    assert "CUDA" not in ended.out
    rates = tuple(MatmulRate(dtype, 1024, 1e10) for dtype in ("fp32", "bf16"))
    save_calibration(Calibration("Some CPU", "cpu", "2.13.0", "2026-01-02", rates, 1e10, 1e-5))
    planned = json.loads(run("plan", "r.yaml", "--gpu", "cpu", "train.max_steps=3", "--json").out)
    (one,) = planned["gpus"]
    assert one["on_cpu"]
    assert one["needed_bytes"] == planned["memory"]["peak_allocated_bytes"]
    assert one["run_seconds"] >= 3 * one["step_seconds"] > 0
    monkeypatch.setattr(gpu.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**20))
    assert run("plan", "r.yaml", "--gpu", "cpu").code == 1


def test_own_prices_and_accelerators(run, tiny, tmp_path, monkeypatch):
    (tmp_path / "facts").mkdir()
    prices = tmp_path / "facts" / "prices.yaml"
    prices.write_text("- {accelerator: Mine, usd_per_gpu_hour: 1.5}\n", encoding="utf-8")
    accelerators = "- {name: Mine, memory_gib: 8, bandwidth_gb_per_second: 500, peak_tflops: {bf16: 50, fp32: 10}}\n"
    (tmp_path / "facts" / "accelerators.yaml").write_text(accelerators, encoding="utf-8")
    monkeypatch.setenv("HF_EFFICIENT_FACTS", str(tmp_path / "facts"))
    found = json.loads(run("plan", "r.yaml", "--gpu", "mine", "train.max_steps=3", "--json").out)
    (gpu,) = found["gpus"]
    assert (gpu["name"], gpu["price_usd_per_hour"], gpu["price_source"]) == ("Mine", 1.5, "your own prices: own")
    assert gpu["run_usd"] > 0
    assert gpu["run_kwh"] is None
    assert found["assumptions"][-1] == "Mine: memory, rates and power are those of your own facts"


def test_several_gpus(run, tiny):
    ended = run("plan", "r.yaml", "--gpu", "H100 SXM", "--num-gpus", "4", "train.max_steps=3", "--json")
    planned = json.loads(ended.out)
    assert planned["ranks"] == {"count": 4, "strategy": "ddp", "offloaded": [], "host_bytes": 0, "disk_bytes": 0}
    alone = json.loads(run("plan", "r.yaml", "--gpu", "H100 SXM", "train.max_steps=3", "--json").out)
    assert planned["flops_per_step"] == 4 * alone["flops_per_step"]
    assert planned["gpus"][0]["price_usd_per_hour"] == pytest.approx(4 * alone["gpus"][0]["price_usd_per_hour"])
    assert planned["gpus"][0]["communication_seconds"] > 0


def test_equal_tensors_are_one_row_whose_bytes_are_those_of_shape_and_dtype(run, tiny):
    args = ("distributed.strategy=zero3", "adapter.method=full", "train.bf16=true", "--num-gpus", "4")
    ended = run("plan", "r.yaml", "--gpu", "H100 SXM", *args, "--json")
    largest = json.loads(ended.out)["memory"]["largest"]
    sizes = {"float32": 4, "bfloat16": 2, "int64": 8, "uint8": 1, "bool": 1}
    assert "optimizer_state" in {one["category"] for one in largest}
    for one in largest:
        assert one["bytes"] == math.prod(one["shape"]) * sizes[one["dtype"]], one
    keys = [(one["bytes"], one["category"], *one["shape"], one["dtype"]) for one in largest]
    assert len(set(keys)) == len(keys)
    assert max(one["count"] for one in largest) > 1


LOADING = """
import gc, os, sys
from hf_efficient.cli.plan import lean_imports
try:
    with lean_imports():
        within = gc.isenabled()
        import bitsandbytes
except ImportError:
    pass
print(within, gc.isenabled(), gc.get_freeze_count() > 0, os.environ["TORCHDYNAMO_DISABLE"])
print(*(name for name in ("torch._inductor.compile_fx", "bitsandbytes") if name in sys.modules))
"""


@pytest.mark.slow
def test_bitsandbytes_loads_without_the_compiler(monkeypatch):
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["False True True 1", "bitsandbytes"]
