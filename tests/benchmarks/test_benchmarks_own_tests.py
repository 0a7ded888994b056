import json

from own_tests import compared


def line(test, outcome, *trained, reason=""):
    told = {"id": test, "outcome": outcome, "reason": reason, "trained": trained, "under_the_mixin": len(trained)}
    return json.dumps(told) + "\n"


def test_both_arms_are_compared_by_outcome_and_weights(tmp_path):
    hub = "OSError: We couldn't connect to 'https://huggingface.co' to load the files"
    alike = line("same", "passed", "3 steps, aa") + line("hub", "failed", reason=hub) + line("gpu", "skipped")
    plain = alike + line("outcome", "passed") + line("weights", "passed", "3 steps, aa") + line("alone", "passed")
    mixin = alike + line("outcome", "failed", reason="4 != 3") + line("weights", "passed", "3 steps, bb")
    (tmp_path / "test_some_plain.jsonl").write_text(plain)
    (tmp_path / "test_some_mixin.jsonl").write_text(mixin)
    told = compared("tests/test_some.py", tmp_path, tmp_path, "no_plugin")
    other = told.pop("otherwise_under_the_mixin")
    assert {test: (arms["plain"]["outcome"], arms["mixin"]["outcome"]) for test, arms in other.items()} == {
        "outcome": ("passed", "failed"),
        "weights": ("passed", "passed"),
    }
    assert told == {
        "tests": 6,
        "in_one_arm_alone": ["alone"],
        "same_outcome": 4,
        "without_the_mixin": {"passed": 4, "failed": 1, "skipped": 1},
        "with_the_mixin": {"passed": 2, "failed": 2, "skipped": 1},
        "that_train": 2,
        "that_train_and_pass": 2,
        "that_train_under_the_mixin": 2,
        "same_weights": 1,
        "failed_for_want_of_the_hub": 1,
        "failed_without_it": {hub: 1},
    }
