"""A user's own accelerators and prices."""

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.facts.prices import Rates, offers, price_facts, prices, providers
from hf_efficient.facts.tables import accelerator, accelerator_of_device, accelerators, own_facts_folder

ACCELERATORS = """\
- name: Thing One
  memory_gib: 47.5
  device_names: [ACME Thing One]
  peak_tflops: {bf16: 100}
- name: l4
  memory_gib: 24
  bandwidth_gb_per_second: 320
  peak_tflops: {bf16: 121, fp16: 121}
  compute_capability: [8, 9]
"""
PRICES = """\
- accelerator: Thing One
  usd_per_gpu_hour: 0
- accelerator: h100-sxm
  usd_per_gpu_hour: 3.1
  provider: our cluster
  date: 2026-11-01
- accelerator: H100 SXM
  usd_per_gpu_hour: 1.1
  market: spot
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes the files, and names their folder."""

    def write(**files):
        folder = tmp_path / f"facts{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        monkeypatch.setenv("HF_EFFICIENT_FACTS", str(folder))
        return folder

    return write


def test_a_new_accelerator_is_known_by_its_names(own):
    own(accelerators=ACCELERATORS)
    held = accelerator("thing-one")
    assert accelerator_of_device("ACME Thing One") is held
    assert (held.memory_bytes, held.peak("bf16"), held.own) == (round(47.5 * 2**30), 1e14, True)
    assert (held.bandwidth_bytes_per_second, held.tdp_watts, held.compute_capability) == (None, None, None)
    assert accelerators()[-1] is held


def test_usable_memory_of_an_own_one(own):
    own(accelerators="- {name: Read, memory_gib: 48, usable_gib: 44.5}\n- {name: Unread, memory_gib: 100}\n")
    read, unread = accelerator("Read"), accelerator("Unread")
    assert (read.usable_memory_bytes, read.usable_is_estimated) == (44.5 * 2**30, False)
    assert (unread.usable_memory_bytes, unread.usable_is_estimated) == (91 * 2**30, True)


def test_a_row_takes_the_place_of_the_shipped_one(own):
    shipped = [one.name for one in accelerators()]
    own(accelerators=ACCELERATORS)
    held = accelerator("L4")
    assert (held.name, held.bandwidth_bytes_per_second, held.tdp_watts, held.own) == ("l4", 3.2e11, None, True)
    assert [one.name for one in accelerators()] == ["l4" if name == "L4" else name for name in shipped] + ["Thing One"]
    assert not accelerator("A10").own


def test_own_prices_come_before_the_shipped_ones_of_the_same_market(own):
    own(accelerators=ACCELERATORS, prices=PRICES)
    assert [(one.provider, one.usd_per_gpu_hour) for one in offers("H100 SXM", "on_demand")] == [("our cluster", 3.1)]
    assert [one.usd_per_gpu_hour for one in offers("H100 SXM", "spot")] == [1.1]
    assert len(offers("H200", "on_demand")) > 3
    assert offers("H100 SXM", "on_demand", "lambda")[0].provider == "lambda"
    assert offers("Thing One", "on_demand")[0].usd_per_gpu_hour == 0.0
    assert "our cluster" in providers()
    assert offers("H100 SXM", "on_demand", "Our Cluster")[0].usd_per_gpu_hour == 3.1
    assert offers("H100 SXM", "on_demand")[0].label == "your own prices: our cluster, 2026-11-01"
    assert offers("H100 SXM", "spot")[0].label == "your own prices: own"


def test_a_run_pays_them(own):
    own(accelerators=ACCELERATORS, prices=PRICES)
    h100 = "NVIDIA H100 80GB HBM3"
    assert price_facts(Rates(), h100, 2) == {
        "price_usd_per_hour": 6.2,
        "source": "your own on-demand price per GPU-hour of H100 SXM ($3.1) of 2026-11-01, 2 GPUs",
        "estimated": False,
    }
    spot = price_facts(Rates(price_from="own", market="spot"), h100, 1)
    assert spot["source"] == "your own own spot price, $1.1 per GPU-hour of H100 SXM, 1 GPU"
    assert price_facts(Rates(), "ACME Thing One", 1)["price_usd_per_hour"] == 0.0


def test_they_are_looked_for_beside_the_users_configuration(tmp_path, monkeypatch):
    folder = tmp_path / "hf_efficient" / "facts"
    folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert own_facts_folder() is None
    (folder / "prices.yaml").write_text("- {accelerator: L4, usd_per_gpu_hour: 0.25}\n", encoding="utf-8")
    assert own_facts_folder() == folder
    assert offers("L4", "on_demand")[0].usd_per_gpu_hour == 0.25


WRONG_PRICES = {
    "- accelerator: L4\n  usd_per_gpu_hour: -1\n": (
        ": row 1: usd_per_gpu_hour: is -1; input should be greater than or equal to 0."
    ),
    "\n- {accelerator: L4, usd_per_hour: 1}\n": (
        ": row 1: usd_per_gpu_hour: is missing; every row needs it.\n"
        "FOLDER/prices.yaml: row 1: usd_per_hour: is no key of a row. Did you mean usd_per_gpu_hour?"
    ),
    "- {accelerator: L4, usd_per_gpu_hour: .nan}\n": ": row 1: usd_per_gpu_hour: is nan; ",
    "- {accelerator: L4, usd_per_gpu_hour: '2'}\n": (
        ": row 1: usd_per_gpu_hour: is '2'; input should be a valid number."
    ),
    "- {accelerator: L4, usd_per_gpu_hour: 1, market: sopt}\n": (
        ": row 1: market: is 'sopt'; input should be 'on_demand' or 'spot'."
    ),
    "- {accelerator: RTX 4009, usd_per_gpu_hour: 1}\n": (
        ": accelerator: 'RTX 4009' is no accelerator with known figures. Did you mean RTX 4090"
    ),
    "accelerator: L4\n": ": is no list of rows. Each row begins with `- `",
    "- L4\n": ": row 1: is 'L4'; write `- ` and keys with values",
    "- {accelerator: L4\n": ": cannot be read: line ",
}
WRONG_ACCELERATOR = "- {name: X, memory_gib: 0, peak_tflops: {bf17: 3, bf16: -2}}\n"


@pytest.mark.parametrize(("text", "said"), WRONG_PRICES.items())
def test_a_wrong_price_is_named_with_file_row_and_key(own, text, said):
    folder = own(prices=text)
    with pytest.raises(SetupError) as error:
        prices()
    assert str(error.value).startswith(f"{folder}/prices.yaml{said.replace('FOLDER', str(folder))}")


def test_all_that_is_wrong_with_an_accelerator_is_named(own):
    folder = own(accelerators=WRONG_ACCELERATOR)
    with pytest.raises(SetupError) as error:
        accelerators()
    assert str(error.value).replace(f"{folder}/accelerators.yaml: row 1: ", "").split("\n") == [
        "memory_gib: is 0; input should be greater than 0.",
        "peak_tflops.bf17: is 'bf17'; input should be 'fp32', 'tf32', 'fp16', 'bf16', 'fp8' or 'int8'.",
        "peak_tflops.bf16: is -2; input should be greater than 0.",
    ]


def test_a_folder_without_facts(own):
    folder = own()
    with pytest.raises(SetupError, match=f"^HF_EFFICIENT_FACTS: {folder} holds neither accelerators.yaml nor prices"):
        accelerators()
