from __future__ import annotations

import pytest

from hf_efficient.recipe.rules import efficiency as rules

HEAD = "name: t\nmodel: {id: m}\ndata: {train: [{path: a}]}\noutput_dir: o\n"
KEY = "efficiency.profile"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            [f"{KEY}.trace={{}}", "efficiency.record_steps=false"],
            f"{KEY}: is set, but `efficiency.record_steps: false`",
        ),
        (
            [f"{KEY}.trace={{wait: 4, warmup: 1}}", "train.max_steps=5"],
            f"{KEY}.trace: waits for step 6, but `train.max_steps` is 5. Write a smaller wait or "
            "warmup, or more steps.",
        ),
        ([f"{KEY}.memory={{at_steps: [2, 9]}}", "train.max_steps=8"], f"{KEY}.memory.at_steps.1: waits for step 9"),
        ([f"{KEY}.python={{after_step: 8}}", "train.max_steps=8"], f"{KEY}.python.after_step: waits for step 9"),
        ([f"{KEY}.capture={{after_step: 8}}", "train.max_steps=8"], f"{KEY}.capture.after_step: waits for step 9"),
        ([f"{KEY}.trace={{shapes: false}}"], f"{KEY}.trace.flops: is true, but FLOPs are counted from shapes."),
        ([f"{KEY}.trace={{}}", f"{KEY}.python={{}}"], f"{KEY}.trace.stacks: is set, but `{KEY}.python` watches"),
        (
            [f"{KEY}.python={{}}", f"{KEY}.host_memory=['json:dumps']"],
            f"{KEY}.host_memory: is set, but `{KEY}.python` watches Python's calls already, and CPython has room for "
            "one. Leave it out, or the other.",
        ),
        ([f"{KEY}.lines=['json:dumps']", "train.max_steps=4"], f"{KEY}.lines: waits for step 5, but `train.max_steps`"),
        ([f"{KEY}.lines=[json.dumps]"], f"{KEY}.lines.0: is 'json.dumps', which names no function. Write package.mod"),
        ([f"{KEY}.trace={{wait: -1}}"], f"{KEY}.trace.wait: is the number -1, but must be at least 0."),
        ([f"{KEY}.trace={{active: 0}}"], f"{KEY}.trace.active: is the number 0, but must be greater than 0."),
        ([f"{KEY}.trace=true"], f"{KEY}.trace: is true, but must be a mapping."),
        ([f"{KEY}.trace={{waits: 2}}"], f"{KEY}.trace.waits: is no key of a recipe. Did you mean `wait`?"),
        ([f"{KEY}.python={{tool: pyspy}}"], f"{KEY}.python.tool: is the text 'pyspy', but must be cprofile or pyinst"),
    ],
)
def test_an_instrument_that_could_not_do_its_work(problems, flags, said):
    (found,) = problems(HEAD, *flags)
    assert said in found


@pytest.mark.parametrize(
    ("flag", "package"),
    [
        (f"{KEY}.python={{tool: pyinstrument}}", "pyinstrument"),
        (f"{KEY}.lines=['json:dumps']", "line_profiler"),
        (f"{KEY}.host_memory=['json:dumps']", "memray"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(problems, monkeypatch, flag, package):
    monkeypatch.setattr(rules, "is_installed", lambda module: module != package)
    (found,) = problems(HEAD, flag)
    assert f"needs the package {package}, which is not installed. Install the extra" in found
    assert "pip install 'hf-efficient[profile]'" in found


def test_every_instrument_at_once(problems, monkeypatch):
    monkeypatch.setattr(rules, "is_installed", lambda module: True)
    flags = [
        "train.max_steps=9",
        f"{KEY}.trace={{stacks: false}}",
        f"{KEY}.memory={{at_steps: [9], at_end: true}}",
        f"{KEY}.python={{tool: pyinstrument}}",
        f"{KEY}.lines=['json:dumps']",
        f"{KEY}.nvtx=true",
        f"{KEY}.capture={{}}",
    ]
    assert problems(HEAD, *flags) == []
    assert problems(HEAD) == []
