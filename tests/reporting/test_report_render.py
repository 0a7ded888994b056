"""What every page is made of: colours, scripts, data that cannot be taken for something else."""

import base64
import hashlib
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

import hf_efficient
from hf_efficient.records.steps import COARSE_PHASES, PHASES, STEP_PHASES
from hf_efficient.reporting.html import render as page
from hf_efficient.reporting.labels import CATEGORY_COLORS, PHASE_COLORS, category_label, phase_color, phase_label

# Linear RGB as a dichromat sees it: Machado, Oliveira, Fernandes 2009, "A Physiologically-based Model for Simulation
# of Color Vision Deficiency", severity 1.0.
SIGHTS = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
# Linear RGB to OKLab: Ottosson 2020.
TO_LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
TO_LMS += [[0.0883024619, 0.2817188376, 0.6299787005]]
TO_LAB = [[0.210454255, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
TO_LAB += [[0.0259040371, 0.7827717662, -0.808675766]]


def linear(color: str) -> np.ndarray:
    held = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(held <= 0.04045, held / 12.92, ((held + 0.055) / 1.055) ** 2.4)


def distance(one: str, other: str) -> float:
    """The least that any sight leaves between two colours, in hundredths of OKLab's unit."""

    def seen(color: str, sight: object) -> np.ndarray:
        return np.array(TO_LAB) @ np.cbrt(np.array(TO_LMS) @ np.clip(np.array(sight) @ linear(color), 0, 1))

    return 100 * min(float(np.linalg.norm(seen(one, sight) - seen(other, sight))) for sight in SIGHTS.values())


def test_every_phase_has_a_colour_of_its_own():
    assert list(PHASE_COLORS) == [*(name for name in PHASES if name in PHASE_COLORS)]
    assert set(PHASE_COLORS) == set(PHASES)
    assert len(set(PHASE_COLORS.values())) == len(PHASES)
    assert phase_color("dreaming") not in PHASE_COLORS.values()
    assert (phase_label("data_wait"), phase_label("new_phase")) == ("data wait", "new phase")
    assert category_label("optimizer_state") == "optimizer state"


OF_A_STEP = [name for name in ("compilation", *STEP_PHASES, "unattributed") if name not in COARSE_PHASES]


@pytest.mark.parametrize(
    ("pairs", "colors", "least"),
    [
        (itertools.combinations(OF_A_STEP, 2), PHASE_COLORS, 9),
        (itertools.pairwise(PHASE_COLORS), PHASE_COLORS, 8),
        (itertools.combinations(CATEGORY_COLORS, 2), CATEGORY_COLORS, 8),
    ],
    ids=["phases of a step", "neighbours in a stack", "kinds of memory"],
)
def test_colours_can_be_told_apart(pairs, colors, least):
    near = min((distance(colors[one], colors[other]), one, other) for one, other in pairs)
    assert near[0] >= least, near


def test_json_holds_no_markup_and_is_the_same_data():
    data = {"name": "</script><script>alert(1)</script>", "x": "<!-- & \u2028\u2029 é", "y": [1, 2.5, None, True]}
    text = str(page.json_for_script(data))
    assert not set("<>&\u2028\u2029é") & set(text)
    assert json.loads(text) == data


def test_what_is_no_number_becomes_null_and_what_is_nothing_is_left_out():
    assert json.loads(page.json_for_script({"a": [math.nan, math.inf, 1.0], "b": None, "c": (None,)})) == {
        "a": [None, None, 1.0],
        "c": [None],
    }


def test_the_policy_lets_run_these_scripts_alone():
    digest = base64.b64encode(hashlib.sha256(b"let a = 1").digest()).decode()
    told = page.policy(["let a = 1"])
    assert f"script-src 'sha256-{digest}';" in told
    assert told.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in told.partition("script-src")[2].partition(";")[0]


def test_no_shipped_script_ends_its_own_element():
    scripts = [page.library_script(), *(path.read_text("utf-8") for path in page._STATIC.glob("*.js"))]
    assert len(scripts) == 3
    assert not any("</script" in script.lower() or "<!--" in script for script in scripts)


PACKAGE = Path(hf_efficient.__file__).parent
ASSETS = PACKAGE / "reporting" / "assets"


def test_the_library_is_unchanged():
    held = json.loads((ASSETS / "vendored.json").read_text(encoding="utf-8"))
    content = (ASSETS / held["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == held["sha256"]
    assert f"v{held['version']}\n".encode() in content[:200]
    assert content.decode() == page.library_script()
    assert page.library_name() == f"{held['name']} {held['version']} (MIT)"
    assert (ASSETS / held["licence_file"]).read_text(encoding="utf-8").startswith("MIT License\n")
    assert {path.name for path in ASSETS.iterdir()} == {held["file"], held["licence_file"], "vendored.json"}


def test_the_wheel_carries_what_the_page_is_made_of():
    from hatchling.builders.wheel import WheelBuilder

    included = {Path(file.path) for file in WheelBuilder(str(PACKAGE.parent)).recurse_project_files()}
    folders = [PACKAGE / "reporting" / name for name in ("assets", "html/templates", "html/static")]
    needed = {path for folder in folders for path in folder.rglob("*") if path.is_file()}
    assert len(needed) >= 11
    assert needed <= included
