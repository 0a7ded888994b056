"""Nothing that a page holds can be taken for something else."""

from __future__ import annotations

import base64
import hashlib
import json
import math

import pytest

from hf_efficient.reporting.html.render import json_for_script, policy, script_text


def test_json_holds_no_markup_and_is_the_same_data():
    data = {"name": "</script><script>alert(1)</script>", "x": "<!-- & \u2028\u2029 é", "y": [1, 2.5, None, True]}
    text = str(json_for_script(data))
    assert not set("<>&\u2028\u2029é") & set(text)
    assert json.loads(text) == data


def test_what_is_no_number_becomes_null_and_what_is_nothing_is_left_out():
    assert json.loads(json_for_script({"a": [math.nan, math.inf, 1.0], "b": None, "c": (None,)})) == {
        "a": [None, None, 1.0],
        "c": [None],
    }


def test_the_policy_lets_run_these_scripts_alone():
    digest = base64.b64encode(hashlib.sha256(b"let a = 1").digest()).decode()
    told = policy(["let a = 1"])
    assert f"script-src 'sha256-{digest}';" in told
    assert told.startswith("default-src 'none'; ")
    assert "unsafe-inline" not in told.partition("script-src")[2].partition(";")[0]


@pytest.mark.parametrize("text", ["a</script>b", "a</SCRIPT >", "<!-- a"])
def test_a_script_that_would_end_itself_is_refused(text):
    with pytest.raises(ValueError, match="cannot stand in a page"):
        script_text(text)
