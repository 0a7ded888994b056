"""The page of a plan in a real browser: drawn, quiet, readable, on a phone as well."""

from __future__ import annotations

import dataclasses

import pytest
from browser import start_browser
from hostile import IMAGE, SCRIPT
from sample_plan import ADVICE, FITS, PLAN

from hf_efficient.reporting.html.plan_page import plan_page
from hf_efficient.run_dir.json_file import write_whole

READABLE = 4.5
NAMES = [("A100 80GB PCIe", 0.5, 4.0), ("RTX PRO 6000 Blackwell", 0.7, 3.0), ("RTX 4090", 6.5, 0.2), ("H100", 9.0, 9.0)]
GPUS = [
    dataclasses.replace(FITS, name=name, run_seconds=3600 * hours, run_usd=usd, on_frontier=usd < 5)
    for name, hours, usd in NAMES
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = start_browser(tmp_path_factory.mktemp("profile"))
    yield started
    started.driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "plan.html"
    write_whole(path, plan_page(dataclasses.replace(PLAN, advice=ADVICE, gpus=GPUS), "hf-efficient plan it"))
    return path


def test_every_plot_is_drawn_without_a_word_and_without_a_request(browser, page):
    browser.open(page)
    shapes = browser.js(
        """return Object.fromEntries([...document.querySelectorAll('figure')].map((figure) => [figure.id,
        figure.querySelectorAll('.barlayer .point path, .scatterlayer .js-fill, .scatterlayer .points path')
        .length]))"""
    )
    assert shapes == {"planned-memory": 2 + 4, "time-money": 4 + 4}
    assert browser.messages() == []
    assert browser.requests() == []
    assert browser.asked_files() == []


def test_a_pointer_is_told_the_values(browser, page):
    browser.open(page)
    told = browser.hover("planned-memory", 40 / 70)
    assert "weights : 15 GiB" in told
    assert "logits : 5 GiB" in told
    names = browser.js("return [...document.querySelectorAll('#time-money .textpoint')].map((one) => one.textContent)")
    assert names == ["A100 80GB PCIe", "RTX PRO 6000 Blackwell", "RTX 4090"]


def test_a_phone_scrolls_one_way(browser, page):
    browser.open(page, width=390, height=800)
    plots = "[...document.querySelectorAll('.plot .main-svg')]"
    assert browser.wait(f"{plots}.every((svg) => svg.getBoundingClientRect().right <= 390)")
    assert browser.js("return [document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    tallest = (
        "Math.max(...[...document.querySelectorAll('section table:not(.dense) tr')].map((row) => row.offsetHeight))"
    )
    assert browser.js(f"return {tallest}") < 60  # no column is squeezed to a letter


@pytest.mark.parametrize(("dark", "ground"), [(False, "rgb(255, 255, 255)"), (True, "rgb(16, 19, 24)")])
def test_every_text_can_be_read(browser, page, dark, ground):
    browser.open(page, dark=dark)
    assert browser.wait(f"getComputedStyle(document.body).backgroundColor === '{ground}'")
    found = browser.contrasts()
    assert len(found) > 60
    assert found[0][0] >= READABLE, found[:5]


def test_texts_from_outside_are_not_run(browser, tmp_path):
    gpu = dataclasses.replace(FITS, name=SCRIPT + IMAGE)
    plan = dataclasses.replace(PLAN, recipe=SCRIPT, model=IMAGE, gpus=[gpu], assumptions=[IMAGE])
    write_whole(tmp_path / "plan.html", plan_page(plan, SCRIPT))
    browser.open(tmp_path / "plan.html")
    browser.hover("time-money", 0.5)
    assert browser.js("return window.taken ?? null") is None
    assert browser.messages() == []
