from __future__ import annotations

import pytest

from hf_efficient.launch.started import RunFlags, parse_flags


def test_flags_may_stand_anywhere():
    expected = RunFlags("r.yaml", ("a.b=1", "c=2", "existing_output=resume"), True)
    assert parse_flags(["--resume", "r.yaml", "a.b=1", "--debug", "c=2"]) == expected


def test_resume_and_overwrite_exclude_each_other(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_flags(["r.yaml", "--resume", "--overwrite"])
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_an_unknown_flag_is_an_error():
    with pytest.raises(SystemExit) as caught:
        parse_flags(["r.yaml", "--resmue"])
    assert caught.value.code == 2
