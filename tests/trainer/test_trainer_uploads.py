"""What goes up to the hub: every file that an intercepted upload would send is read."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import CommitInfo, hf_api
from tiny_training import arguments, build_model, causal_trainer, rows, trl_trainer
from transformers import Trainer
from trl import SFTTrainer

from hf_efficient import EfficientTrainer, EfficientTrainerMixin, Rates
from hf_efficient.callbacks import AccountCallback, TorchTraceCallback

PRICE = 77.25
PUSH = {"push_to_hub": True, "save_strategy": "steps", "save_steps": 1, "max_steps": 2, "hub_always_push": True}


@pytest.fixture
def uploads(monkeypatch, tmp_path):
    """What was sent, by its path in the repository; nothing reaches the network. Runs are below ``tmp_path``."""
    sent: dict[str, bytes] = {}

    def commit(self, *, operations, **_):
        for one in operations:
            with one.as_file() as file:
                sent[one.path_in_repo] = file.read()
        url = "https://huggingface.co/someone/out/commit/1"
        return CommitInfo(commit_url=url, commit_message="", commit_description="", oid="1")

    monkeypatch.setattr(hf_api, "is_xet_available", lambda: False, raising=False)
    monkeypatch.setattr(huggingface_hub.HfApi, "create_commit", commit)
    monkeypatch.setattr(huggingface_hub.HfApi, "_validate_yaml", lambda *_, **__: None)
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: SimpleNamespace(repo_id="someone/out"))
    repo = SimpleNamespace(repo_id="someone/out")
    monkeypatch.setattr("transformers.trainer.create_repo", lambda *_, **__: repo, raising=False)  # up to 5.3
    monkeypatch.chdir(tmp_path)
    return sent


def assert_public(sent: dict[str, bytes], tmp_path: Path) -> None:
    """No name of this machine, no absolute path of the run, and no price in any file."""
    secrets = [str(tmp_path), str(PRICE), "usd"]
    if len(socket.gethostname()) > 3:
        secrets.append(socket.gethostname())
    for name, content in sent.items():
        assert "efficiency" not in Path(name).parts
        assert [word for word in secrets if word.encode() in content] == [], name


@pytest.mark.parametrize("strategy", ["every_save", pytest.param("all_checkpoints", marks=pytest.mark.slow)])
def test_every_hub_strategy_leaves_the_records_here(strategy, uploads, tiny_dir, tmp_path):
    more = {"rates": Rates(price_usd_per_hour=PRICE)}
    trainer = causal_trainer(
        EfficientTrainer, tiny_dir, Path("out"), "full", mixin=more, hub_strategy=strategy, eval_rows=4, **PUSH
    )
    result = trainer.train()
    trainer.save_metrics("train", result.metrics)
    trainer.save_state()
    trainer.push_to_hub()
    assert str(PRICE) in (tmp_path / "out/efficiency/run.json").read_text()  # there is something to leave out
    assert "efficiency/run/cost_usd" in result.metrics
    assert {"README.md", "model.safetensors", "training_args.bin", "trainer_state.json"} <= set(uploads)
    assert ("checkpoint-2/trainer_state.json" in uploads) == (strategy == "all_checkpoints")
    assert_public(uploads, tmp_path)
    figures = json.loads(uploads["train_results.json"])
    assert "efficiency/run/wall_seconds" in figures


@pytest.mark.slow
@pytest.mark.parametrize("with_mixin", [True, False])
def test_trainers_of_trl_leave_them_here(with_mixin, uploads, tiny_dir, tiny_tokenizer, tmp_path):
    class Ours(EfficientTrainerMixin, SFTTrainer): ...

    rates = Rates(price_usd_per_hour=PRICE)
    trainer = trl_trainer(
        Ours if with_mixin else SFTTrainer,
        build_model(tiny_dir, "full"),
        Path("out"),
        tiny_tokenizer,
        more={"rates": rates} if with_mixin else {"callbacks": [AccountCallback(rates=rates)]},
        hub_strategy="checkpoint",
        **PUSH,
    )
    trainer.train()
    trainer.push_to_hub()
    assert str(PRICE) in (tmp_path / "out/efficiency/run.json").read_text()
    assert "last-checkpoint/trainer_state.json" in uploads
    assert_public(uploads, tmp_path)


@pytest.mark.parametrize("folder", [".", "notes/run"])
def test_records_at_another_place_below_the_output_stay_as_well(folder, uploads, tiny_dir, tmp_path):
    records = Path("out") / folder
    callback = AccountCallback(efficiency_dir=records, rates=Rates(price_usd_per_hour=PRICE))
    trainer = causal_trainer(Trainer, tiny_dir, Path("out"), "full", callbacks=[callback], max_steps=1)
    trainer.train()
    trainer.push_to_hub()
    assert (records / "run.json").is_file()
    assert "model.safetensors" in uploads
    assert_public(uploads, tmp_path)


def test_what_an_earlier_process_recorded_stays_as_well(uploads, tiny_dir, tmp_path):
    earlier = tmp_path / "out/efficiency/profile"
    earlier.mkdir(parents=True)
    (earlier / "trace.json").write_text(str(tmp_path))
    trainer = Trainer(
        model=build_model(tiny_dir, "full"),
        args=arguments(Path("out")),
        train_dataset=rows(),
        callbacks=[TorchTraceCallback()],
    )
    trainer.push_to_hub(commit_message="Untrained")
    assert set(uploads) == {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "training_args.bin",
    }


def test_other_folders_are_uploaded_as_they_were(uploads, tmp_path):
    other = tmp_path / "other/efficiency"
    other.mkdir(parents=True)
    (other / "mine.txt").write_text("mine")
    huggingface_hub.HfApi().upload_folder(repo_id="someone/other", folder_path=tmp_path / "other")
    assert set(uploads) == {"efficiency/mine.txt"}
