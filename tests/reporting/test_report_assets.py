"""The vendored library is the one that was vendored, and installed packages carry everything."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import hf_efficient
from hf_efficient.reporting.html.render import library_name, library_script, page_scripts, style_sheet

PACKAGE = Path(hf_efficient.__file__).parent
ASSETS = PACKAGE / "reporting" / "assets"


def test_the_library_is_unchanged():
    held = json.loads((ASSETS / "vendored.json").read_text(encoding="utf-8"))
    content = (ASSETS / held["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == held["sha256"]
    assert f"v{held['version']}\n".encode() in content[:200]
    assert content.decode() == library_script()
    assert library_name() == f"{held['name']} {held['version']} (MIT)"
    assert (ASSETS / held["licence_file"]).read_text(encoding="utf-8").startswith("MIT License\n")
    assert sorted(path.name for path in ASSETS.iterdir()) == sorted(
        [held["file"], held["licence_file"], "vendored.json"]
    )


def test_scripts_and_style_name_no_address():
    for text in (*page_scripts(), style_sheet()):
        assert "http" not in text
        assert "@import" not in text
        assert "url(" not in text


def test_the_wheel_carries_what_the_page_is_made_of():
    from hatchling.builders.wheel import WheelBuilder

    root = PACKAGE.parent
    included = {
        Path(file.path).relative_to(root).as_posix() for file in WheelBuilder(str(root)).recurse_project_files()
    }
    needed = [
        path.relative_to(root).as_posix()
        for folder in ("assets", "html/templates", "html/static")
        for path in (PACKAGE / "reporting" / folder).rglob("*")
        if path.is_file()
    ]
    assert len(needed) >= 11
    assert sorted(set(needed) - included) == []
