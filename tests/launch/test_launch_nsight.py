from __future__ import annotations

from pathlib import Path

import pytest

from hf_efficient.errors import SetupError
from hf_efficient.launch.machine import check_installed, nsight_command, nsight_overrides
from hf_efficient.recipe.schema import Recipe


def recipe(profile=None):
    return Recipe(
        name="t",
        model={"id": "m"},
        data={"train": [{"path": "a"}]},
        output_dir="out",
        efficiency={"profile": profile or {}},
    )


def test_nsys_captures_the_recipes_steps():
    assert nsight_command("nsys", recipe(), has_gpu=True) == [
        "nsys",
        "profile",
        "--trace=cuda,nvtx,osrt,cudnn,cublas",
        "--sample=process-tree",
        "--cuda-memory-usage=true",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "--force-overwrite=true",
        f"--output={Path('out/efficiency/profile/nsys')}",
    ]


def test_without_a_gpu_nothing_would_begin_the_capture():
    assert not any("capture" in part for part in nsight_command("nsys", recipe(), has_gpu=False))


def test_ncu_looks_at_the_first_captured_step():
    command = nsight_command("ncu", recipe({"capture": {"after_step": 9}}), has_gpu=True)
    assert {"--nvtx", "--nvtx-include=step 10", "--set=roofline", "--launch-count=200"} <= set(command)


@pytest.mark.parametrize(
    ("profile", "overrides"),
    [
        ({}, ["efficiency.profile.nvtx=true", "efficiency.profile.capture={}"]),
        ({"nvtx": True, "capture": {"steps": 1}}, []),
        ({"capture": {}}, ["efficiency.profile.nvtx=true"]),
    ],
)
def test_the_run_names_its_steps(profile, overrides):
    assert nsight_overrides(recipe(profile)) == overrides


@pytest.mark.parametrize(("tool", "product"), [("nsys", "Nsight Systems"), ("ncu", "Nsight Compute")])
def test_where_it_is_absent(monkeypatch, tmp_path, tool, product):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=rf"--{tool}: {product} is not installed here: .* Get it from https://dev"):
        check_installed(tool)
    program = tmp_path / tool
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    check_installed(tool)
