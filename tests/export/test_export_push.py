"""A run to the hub: what goes up, what the card says, what is refused; the upload is intercepted."""

import json
import shutil

import pytest
import torch
import yaml
from export_models import lora_run, model_folder
from huggingface_hub import HfApi, ModelCard

from hf_efficient.cli.app import main
from hf_efficient.errors import ModelError, OutputError, SetupError
from hf_efficient.launch.card import push
from hf_efficient.recipe.schema import Recipe


def code(argv):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    return ended.value.code


@pytest.fixture
def run(tmp_path):
    made = lora_run(model_folder(tmp_path / "base"), tmp_path / "run")
    shutil.copy(tmp_path / "base/tokenizer.json", made)
    torch.save({"a": 1}, made / "optimizer.pt")
    torch.save({"a": 1}, made / "training_args.bin")
    (made / "trainer_state.json").write_text("{}")
    records = made / "efficiency"
    records.mkdir(exist_ok=True)
    scores = {"task": "sums", "metric": "acc", "filter": "none", "few_shot": 5, "samples": 64, "higher_is_better": True}
    scores |= {"after": 0.75, "after_error": 0.05, "before": 0.5, "before_error": 0.06}
    found = {"schema_version": 1, "model": "run", "base": "base", "lm_eval": "0.4.13", "template": False, "limit": None}
    found |= {"batch_size": 8, "device": "cpu", "seconds": 1.0, "scores": [scores]}
    (records / "evaluation.json").write_text(json.dumps(found))
    return made


@pytest.fixture
def sent(monkeypatch):
    """What an upload would send, by name."""
    files: dict[str, bytes] = {}

    def upload(self, *, repo_id, folder_path, commit_message):
        files.update({path.name: path.read_bytes() for path in folder_path.iterdir()})
        return f"https://huggingface.co/{repo_id}/commit/1"

    monkeypatch.setattr(HfApi, "create_repo", lambda self, name, **how: files.update({"repo": str(how).encode()}))
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    return files


def test_the_model_goes_up_and_nothing_private(run, sent, tmp_path):
    found = push(run, "someone/tuned", private=True)
    assert found.url == "https://huggingface.co/someone/tuned/commit/1"
    assert b"'private': True" in sent.pop("repo")
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", "README.md"} <= set(sent)
    assert not {"optimizer.pt", "training_args.bin", "trainer_state.json", "efficiency"} & set(sent)
    assert all(str(tmp_path).encode() not in content for content in sent.values())
    assert json.loads(sent["adapter_config.json"])["base_model_name_or_path"] == "base"
    card = ModelCard(sent["README.md"].decode())
    assert "| sums acc | 0.5000 | 0.7500 |" in card.text
    assert card.data.library_name == "peft"


def test_the_card_of_a_checkpoint_is_not_peft_s(run, sent, tmp_path):
    recipe = Recipe(name="tiny", model={"id": "base"}, data={"train": [{"path": "a.jsonl"}]}, output_dir=str(run))
    held = {"recipe": recipe.resolved(), "provenance": {}, "environment": {}}
    (run / "efficiency/recipe.resolved.yaml").write_text(yaml.safe_dump(held))
    checkpoint = run / "checkpoint-2"
    checkpoint.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json", "tokenizer.json"):
        shutil.copy(run / name, checkpoint)
    (checkpoint / "README.md").write_text(f"---\nbase_model: {tmp_path}/base\n---\n[More Information Needed]\n")
    push(checkpoint, "someone/tuned")
    assert str(tmp_path) not in sent["README.md"].decode()
    assert "More Information" not in sent["README.md"].decode()


def test_a_dry_run_prints_the_card_and_uploads_nothing(run, sent, capsys):
    assert code(["push", str(run), "--to", "someone/tuned", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Would go to someone/tuned" in said
    assert "| sums acc |" in said
    assert sent == {}


def test_what_is_refused(run, tmp_path):
    with pytest.raises(SetupError, match=r"'tuned' names no owner\. Write YOUR_NAME/tuned\."):
        push(run, "tuned")
    with pytest.raises(SetupError, match="is no repository"):
        push(run, "not a name", dry_run=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="adapter"):
        push(tmp_path / "empty", "someone/tuned", dry_run=True)


def test_a_hub_that_cannot_be_reached_is_one_sentence(run, monkeypatch):
    def unreachable(self, *_, **__):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(HfApi, "create_repo", unreachable)
    with pytest.raises(OutputError, match="cannot be reached: no route to host"):
        push(run, "someone/tuned")
