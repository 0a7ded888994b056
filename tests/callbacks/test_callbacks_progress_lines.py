from __future__ import annotations

from transformers import AutoModelForCausalLM, ProgressCallback, Trainer, TrainingArguments

from hf_efficient.callbacks.progress import ProgressLines, log_line, use_progress_lines


def test_a_training_log_is_one_line():
    logs = {"loss": 3.85617, "grad_norm": 0.82361, "learning_rate": 0.0008, "epoch": 0.0075, "total_flos": 1e12}
    assert log_line(5, 50, logs) == "step  5/50  loss 3.856  grad_norm 0.8236  learning_rate 0.0008"


def test_an_evaluation_says_so_and_leaves_its_speed_out():
    logs = {
        "eval_loss": 3.57,
        "eval_perplexity": 35.53,
        "eval_runtime": 57.5,
        "eval_samples_per_second": 0.1,
        "epoch": 0,
    }
    assert log_line(0, 6, logs) == "step 0/6  evaluation:  loss 3.57  perplexity 35.53"


def test_it_takes_the_place_of_the_trainers_bar(tiny_llama_dir, tmp_path):
    def trainer(**options):
        args = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **options)
        return Trainer(AutoModelForCausalLM.from_pretrained(tiny_llama_dir), args)

    shown = trainer(disable_tqdm=False)
    use_progress_lines(shown)
    bars = [type(one) for one in shown.callback_handler.callbacks if isinstance(one, ProgressCallback)]
    assert bars == [ProgressLines]
    silent = trainer(disable_tqdm=True)
    use_progress_lines(silent)
    assert not any(isinstance(one, ProgressCallback) for one in silent.callback_handler.callbacks)
