"""The notebooks, executed from their first cell to their last as a reader would, and what they leave behind.

Run after the other tests (``make test``): each takes minutes on two cores.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from hf_efficient.accounting.account import load_run
from hf_efficient.facts.prices import prices

LABS = Path(__file__).parent


def execute(name: str, folder: Path) -> nbformat.NotebookNode:
    """Run a notebook in an empty folder; an exception in a cell is raised here."""
    notebook = nbformat.read(LABS / name, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return notebook


def last_value(notebook: nbformat.NotebookNode) -> dict:
    (output,) = [one for one in notebook.cells[-1].outputs if one.output_type == "execute_result"]
    return ast.literal_eval(output.data["text/plain"])


@pytest.mark.parametrize("path", sorted(LABS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    assert [cell for cell in cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)] == []


def test_01_first_qlora(tmp_path):
    found = last_value(execute("01_first_qlora.ipynb", tmp_path))
    assert found["adapter_parameters"] == found["adapter_parameters_predicted"] == 4_884_480
    assert found["bits_per_weight"] == pytest.approx(found["bits_per_weight_predicted"], rel=0.01)
    assert found["flops_per_parameter_and_token"] == pytest.approx(4.2, abs=0.2)
    assert found["loss_after"] < 0.92 * found["loss_before"]
    assert found["padding_share"]["random"] > 2 * found["padding_share"]["group_by_length"]

    run = tmp_path / "outputs/lab1-qlora"
    account = load_run(run)
    assert account.ended == "done"
    assert (account.steps.count, account.time.processes[0].last_step) == (24, 24)
    assert abs(account.time.unattributed_seconds) <= 0.02 * account.time.wall_seconds
    assert json.loads((run / "adapter_config.json").read_text())["r"] == 16
    assert (run / "efficiency/report.html").is_file()
    assert load_run(tmp_path / "outputs/lab1-lora").steps.count == 24


def test_02_will_it_fit(tmp_path):
    found = last_value(execute("02_will_it_fit.ipynb", tmp_path))
    parameters = 8_030_261_248  # of Llama-3.1-8B, as its checkpoint states
    assert found["model_state_gib_predicted"] == pytest.approx(16 * parameters / 2**30, abs=0.01)
    assert found["model_state_gib"] == pytest.approx(found["model_state_gib_predicted"], rel=1e-3)
    assert found["logits_tensors"] == pytest.approx(3.0, abs=0.1)
    peaks = found["peaks_gib"]
    assert peaks["full, bfloat16"] == pytest.approx(peaks["full, float32"] / 2, rel=0.1)
    # AdamW's two numbers: 2 bytes each in bfloat16, 1 byte and 4 / 256 for a scale in 8 bits. The Trainer has bitsandbytes
    # keep those of the embedding in float32, 4 bytes each.
    embedding = 128_256 * 4096
    saved = 2 * (parameters - embedding) * (2 - 1 - 4 / 256) + 2 * embedding * (2 - 4)
    assert peaks["+ checkpointing"] - peaks["+ AdamW in 8 bits"] == pytest.approx(saved / 2**30, rel=0.01)
    # An RTX 4090 gives torch 23.52 GiB. LoRA's peak is below that, what the allocator reserves and the context are not.
    assert [name for name, fits in found["fits"].items() if fits] == ["QLoRA + checkpointing"]
    assert 22 < peaks["LoRA + checkpointing"] < 23.52
    assert all(peaks[name] > 23.52 for name in peaks if "checkpointing" not in name)
    assert found["largest_rows"] == 4


def test_03_what_will_it_cost(tmp_path):
    found = last_value(execute("03_what_will_it_cost.ipynb", tmp_path))
    usd, hours = found["usd"], found["hours"]
    assert len(usd) >= 10
    cheapest_offer = {
        name: min(one.usd_per_gpu_hour for one in prices() if (one.accelerator, one.market) == (name, "on_demand"))
        for name in usd
    }
    for name, value in usd.items():
        assert value == pytest.approx(cheapest_offer[name] * hours[name], abs=2e-3)
    assert found["cheapest"] == min(usd, key=usd.get)
    assert found["fastest"] == min(hours, key=hours.get)
    for name in usd:
        better = [other for other in usd if other != name and usd[other] <= usd[name] and hours[other] <= hours[name]]
        assert (name in found["frontier"]) == (not better)
    assert found["young_minutes"] == found["pencil_minutes"] == pytest.approx((2 * 20 * 6 * 3600) ** 0.5 / 60, abs=1e-3)
    assert all(on_demand == usd[name] for name, (_, on_demand) in found["spot"].items())
    assert found["steps_for_budget"] == {name: int(5 / (usd[name] / 1000)) for name in found["frontier"]}


def test_04_profile_like_a_doctor(tmp_path):
    found = last_value(execute("04_profile_like_a_doctor.ipynb", tmp_path))
    assert found["data_wait_share"] > 0.3
    assert found["busy_share"] > 0.9  # no disk: a transform
    assert found["clean_share"] > 0.3
    assert found["operators_share"] < 0.7  # the model is not the patient
    assert found["cause"] in ("data_transform", "few_workers")
    assert found["overrides"]["train.dataloader_num_workers"] >= 1
    assert 0.5 <= found["achieved"] / found["predicted"] <= 2
    assert not {"data_transform", "few_workers"} & set(found["findings_after"])


def test_07_shard_it(tmp_path):
    pytest.importorskip("deepspeed")
    found = last_value(execute("07_shard_it.ipynb", tmp_path))
    strategies = ["ddp", "zero1", "zero2", "zero3", "fsdp2"]
    assert found["whole_gib"] == pytest.approx(16 * 8_030_261_248 / 2**30, abs=1e-3)
    for one in strategies:
        by_hand, planned = found["pencil_gib"][one], found["planned_gib"][one]
        assert planned["weights"] == pytest.approx(by_hand["weights"], rel=1e-3)
        assert planned["optimizer_state"] == pytest.approx(by_hand["optimizer_state"], rel=1e-3)
        assert planned["gradients"] >= 0.999 * by_hand["gradients"]

    # Embedding and head, eight layers of q, o, k, v, the MLP and two norms, the last norm.
    parameters = 2 * 208 * 128 + 8 * (2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 384 + 2 * 128) + 128
    assert found["small_parameters"] == parameters
    bytes_each = {  # of weight and optimizer state; DeepSpeed copies float32 weights under ZeRO-1 and 2
        "ddp": (4, 8),
        "zero1": (4, 12 / 2),
        "zero2": (4, 12 / 2),
        "zero3": (4 / 2, 8 / 2),
        "fsdp2": (4 / 2, 8 / 2),
    }
    gradients = {"ddp": (4, 4), "zero1": (3.4, 4.8), "zero2": (2, 2.6), "zero3": (2, 2.6), "fsdp2": (2, 2)}
    for one in strategies:
        weight, state = bytes_each[one]
        least, most = gradients[one]
        for rank in found["seen"][one]:
            assert rank["weights"] == pytest.approx(weight * parameters, rel=2e-3)
            assert rank["optimizer_state"] == pytest.approx(state * parameters, rel=2e-3)
            assert 0.998 * least * parameters <= rank["gradients"] <= 1.002 * most * parameters
        assert found["small_planned"][one]["weights"] == pytest.approx(weight * parameters, rel=2e-3)
        assert found["small_planned"][one]["optimizer_state"] == pytest.approx(state * parameters, rel=2e-3)

    assert all(value < 1e-5 for value in found["differences"].values())
    assert found["losses"][-1] < 0.9 * found["losses"][0]

    # Of two processes, in all gradients: an all-reduce 1; an all-gather or a reduce-scatter 1/2.
    sent = {"ddp": 1, "zero1": 1.5, "zero2": 1.5, "zero3": 1, "fsdp2": 1.5}
    for one, times in sent.items():
        assert found["sent_mib"][one] == pytest.approx(times * 4 * parameters / 2**20, rel=0.01)
        assert found["sent_mib_by_plan"][one] == pytest.approx(found["sent_mib"][one], rel=0.01)

    assert found["choice"].keys() == {card for card, fitting in found["fits"].items() if fitting}
    assert all(one in found["fits"][card] for card, one in found["choice"].items())
    assert all(usd > 0 for usd in found["run_usd"].values())
