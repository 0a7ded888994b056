"""The pages in a real browser: drawn, quiet, readable, and what they do when they are used."""

import dataclasses
import io
import re

import pytest
from browser import start_browser
from hostile import IMAGE, SCRIPT, hostile
from sample_findings import diagnosed
from sample_plan import ADVICE, FITS, PLAN

from hf_efficient.accounting.comparison import compare_runs
from hf_efficient.reporting.html.compare_page import compare_page, plan_page
from hf_efficient.reporting.html.run_page import run_page
from hf_efficient.reporting.plots.figure import span_data
from hf_efficient.run_dir.json_file import write_whole

PAGES = ("full", "bare", "crashed", "resumed", "long", "found", "compare", "plan")
pytestmark = pytest.mark.slow
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


def compared(*runs):
    return compare_page(compare_runs([[run] for run in runs]), runs, "hf-efficient compare a b")


@pytest.fixture(scope="module")
def pages(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("pages")

    def make(name):
        path = folder / f"{name}.html"
        if not path.exists():
            runs = {key: request.getfixturevalue(f"{key}_run") for key in ("full", "bare", "crashed")}
            bad = dataclasses.replace(PLAN, recipe=SCRIPT, gpus=[dataclasses.replace(FITS, name=IMAGE)])
            made = {
                "compare": lambda: compared(*runs.values()),
                "hostile": lambda: run_page(hostile(runs["full"])),
                "hostile-compare": lambda: compared(hostile(runs["full"]), runs["full"]),
                "hostile-plan": lambda: plan_page(bad, SCRIPT),
                "found": lambda: run_page(diagnosed(runs["full"])),
                "plan": lambda: plan_page(dataclasses.replace(PLAN, advice=ADVICE, gpus=GPUS), "hf-efficient plan it"),
            }
            write_whole(path, made.get(name, lambda: run_page(request.getfixturevalue(f"{name}_run")))())
        return path

    return make


@pytest.mark.parametrize("name", PAGES)
def test_every_plot_is_drawn_without_a_word_and_without_a_request(browser, pages, name):
    browser.open(pages(name))
    plots = browser.js(
        """return [...document.querySelectorAll('figure')].map((figure) => [figure.id,
        figure.querySelector('.plot').data.length,
        [...figure.querySelectorAll('.trace')].filter((trace) => trace.querySelector('path')).length,
        figure.querySelector('.main-svg').getBoundingClientRect().height])"""
    )
    assert len(plots) >= 2
    for figure, traces, shapes, height in plots:
        assert traces >= 1, figure
        assert shapes >= min(traces, 3), figure
        assert height >= 90, figure
    assert browser.messages() == []
    assert browser.requests() == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_scrolls_one_way(browser, pages, name):
    browser.open(pages(name), width=360, height=800)
    for width in (360, 390, 414):
        browser.resize(width, 800)
        plots = "[...document.querySelectorAll('.plot .main-svg')]"
        assert browser.wait(f"{plots}.every((svg) => svg.getBoundingClientRect().right <= {width})")
        assert browser.js("return [document.documentElement.scrollWidth, innerWidth]") == [width, width]
    assert browser.js("return parseFloat(getComputedStyle(document.body).fontSize)") >= 15
    columns = "(query) => getComputedStyle(document.querySelector(query)).gridTemplateColumns.split(' ').length"
    if name == "full":
        assert browser.js(f"return ['.tiles', '.pair'].map({columns})") == [2, 1]


@pytest.mark.parametrize("name", ["full", "crashed", "found", "compare", "plan"])
def test_every_text_can_be_read(browser, pages, name):
    browser.open(pages(name))
    browser.js("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    browser.js("document.querySelector('.legend button').click()")
    if name not in ("compare", "plan"):
        browser.js("document.querySelector('#step-phases [data-tool=select]').click()")
        assert browser.wait("!document.getElementById('span').hidden")
    plots = {"compare": "compare-step-times", "plan": "planned-memory"}
    assert browser.hover(plots.get(name, "step-phases"), 40 / 70 if name == "plan" else 0.5)
    for dark, ground in ((False, "rgb(255, 255, 255)"), (True, "rgb(16, 19, 24)")):
        browser.scheme(dark)
        assert browser.wait(f"getComputedStyle(document.body).backgroundColor === '{ground}'")
        found = browser.contrasts()
        assert len(found) > 60
        assert found[0][0] >= READABLE, found[:5]
        assert any(element in ("text", "tspan") for _, _, element in found), "no text of a plot was looked at"


def test_the_button_changes_the_scheme_and_it_stays(browser, pages):
    colour = "return [getComputedStyle(document.body).backgroundColor, document.getElementById('scheme').textContent]"
    browser.open(pages("crashed"))
    assert browser.js(colour) == ["rgb(255, 255, 255)", "Dark"]
    browser.js("document.getElementById('scheme').click()")
    assert browser.js(colour) == ["rgb(16, 19, 24)", "Light"]
    browser.open(pages("crashed"))
    assert browser.js(colour) == ["rgb(16, 19, 24)", "Light"]
    browser.js("document.getElementById('scheme').click(); localStorage.clear()")
    assert browser.js(colour) == ["rgb(255, 255, 255)", "Dark"]


def test_a_pointer_is_told_the_values(browser, pages, full_run):
    browser.open(pages("full"))
    steps = full_run.series.steps
    place = 63  # of 120 steps, in the middle of the axis
    told = browser.hover("step-phases", (place + 0.5) / 120)
    assert told.startswith("step 64")
    assert f"forward : {1000 * steps.phase_seconds['forward'][place]:.3g}ms" in told
    assert "logging : 200µs" in told
    assert "evaluation" not in told  # none in this step
    assert re.search(
        r"step 65training loss : 1\.43.*learning rate : 0\.000187gradient norm",
        browser.hover("training-curve", 64.5 / 120),
    )
    assert "GiB" in browser.hover("memory-time", 0.5)
    assert browser.hover("sequence-lengths", 0.41, 0.9) == "≤ 256 tokens: 1,640 documents"
    browser.open(pages("plan"))
    told = browser.hover("planned-memory", 40 / 70)
    assert "weights : 15 GiB" in told
    assert "logits : 5 GiB" in told
    names = browser.js("return [...document.querySelectorAll('#time-money .textpoint')].map((one) => one.textContent)")
    assert names == ["A100 80GB PCIe", "RTX PRO 6000 Blackwell", "RTX 4090"]


def test_zooming_one_plot_zooms_those_of_the_same_axis(browser, pages):
    ranges = """return Object.fromEntries([...document.querySelectorAll('figure')].map((figure) =>
        [figure.id, figure.querySelector('.plot').layout.xaxis.range.map((end) => Math.round(end * 10) / 10)]))"""
    browser.open(pages("full"))
    before = browser.js(ranges)
    assert before["step-phases"] == [0.5, 120.5]
    browser.drag("step-phases", 0.25, 0.5)
    assert browser.wait("document.querySelector('#throughput .plot').layout.xaxis.range[0] > 30")
    after = browser.js(ranges)
    assert after["step-phases"] == pytest.approx([30.5, 60.5], abs=0.3)  # a pixel is an eighth of a step
    for name in ("training-curve", "throughput", "step-tokens"):
        assert after[name] == after["step-phases"]
    for name in ("memory-time", "power", "step-times"):
        assert after[name] == before[name]
    browser.js("document.querySelector('#throughput [data-tool=whole]').click()")
    assert browser.wait("document.querySelector('#step-phases .plot').layout.xaxis.range[0] < 1")
    assert browser.js(ranges) == before
    assert browser.messages() == []


def told_of(browser):
    return browser.js(
        """const panel = document.getElementById('span');
        const text = (query) => [...panel.querySelectorAll(query)].map((each) => each.textContent);
        return [text('h2')[0], Object.fromEntries(text('dt').map((name, place) => [name, text('dd')[place]])),
        text('li')];"""
    )


def expected(run, first, last):
    held = span_data(run.series.steps)
    places = range(first - 1, last)
    total = {name: sum(held[name][place] for place in places) for name in ("training", "tokens", "processed", "wall")}
    rate = f"{total['tokens'] / total['training']:,.0f}"
    forward = sum(held["phases"][2]["seconds"][place] for place in places)
    assert held["phases"][2]["label"] == "forward"
    padding = f"{100 * (1 - total['tokens'] / total['processed']):.3g}%"
    return rate, padding, f"forward {100 * forward / total['wall']:.3g}%", f"{total['wall']:.3g} s"


def test_a_span_that_is_dragged_tells_its_figures(browser, pages, full_run):
    browser.open(pages("full"))
    browser.js("document.querySelector('#step-phases [data-tool=select]').click()")
    assert browser.wait("!document.getElementById('span').hidden")
    assert told_of(browser)[0] == "Steps 1 to 120"
    browser.drag("step-phases", 30.0 / 120, 40.0 / 120)
    assert browser.wait("document.querySelector('#span h2').textContent === 'Steps 31 to 40'")
    _, figures, shares = told_of(browser)
    rate, padding, forward, wall = expected(full_run, 31, 40)
    assert figures["steps"] == "10"
    assert (figures["tokens/s without padding"], figures["padding"]) == (rate, padding)
    assert figures["wall time"] == wall
    assert forward in shares
    losses = [full_run.series.steps.loss[place] for place in (34, 39)]
    assert figures["loss, first → last"] == f"{losses[0]:.4g} → {losses[1]:.4g}"
    browser.js("[...document.querySelectorAll('#span button')].find((b) => b.textContent === 'Zoom to it').click()")
    assert browser.wait("document.querySelector('#training-curve .plot').layout.xaxis.range[0] > 30")
    browser.js("document.querySelector('#span .close').click()")
    assert browser.js("return document.getElementById('span').hidden")
    assert browser.js("return document.querySelector('#step-phases .plot').layout.selections.length") == 0
    assert browser.messages() == []


def test_a_name_of_the_legend_hides_and_shows(browser, pages):
    browser.open(pages("full"))
    button = """[...document.querySelectorAll('#step-phases .legend button')]
        .find((each) => each.textContent === 'backward')"""
    shown = "return document.querySelector('#step-phases .plot').data.find((t) => t.name === 'backward').visible"
    browser.js(f"{button}.click()")
    assert (browser.js(shown), browser.js(f"return {button}.ariaPressed")) == (False, "false")
    browser.js(f"{button}.click()")
    assert (browser.js(shown), browser.js(f"return {button}.ariaPressed")) == (True, "true")


def test_everything_is_reached_by_the_keyboard(browser, pages):
    browser.open(pages("full"))
    reached = browser.js(
        """const wanted = [...document.querySelectorAll('a, button, summary, .scroll')]
          .filter((each) => each.checkVisibility());
        return wanted.map((each) => {
          each.focus({ focusVisible: true });
          const outline = getComputedStyle(each).outlineStyle;
          return [document.activeElement === each, outline, each.textContent.slice(0, 20)]; })"""
    )
    assert len(reached) > 40
    assert [entry for entry in reached if not entry[0] or entry[1] == "none"] == []


def test_the_lines_of_a_remedy_are_copied(browser, pages):
    browser.open(pages("found"))
    browser.run("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    button = browser.driver.find_element("css selector", "#finding-2 ~ .finding-body [data-copy]")
    browser.js("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    assert browser.wait("document.querySelector('#finding-2 ~ .finding-body [data-copy]').textContent === 'Copied'")
    read = "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))"
    assert browser.driver.execute_async_script(read) == "train.save_strategy=steps\ntrain.save_steps=120"
    assert browser.wait("document.querySelector('#finding-2 ~ .finding-body [data-copy]').textContent === 'Copy'")
    assert browser.messages() == []


@pytest.mark.parametrize("name", ["full", "compare"])
def test_paper(browser, pages, name):
    from pypdf import PdfReader

    browser.open(pages(name), dark=True)
    paper = PdfReader(io.BytesIO(browser.pdf()))
    said = "\n".join(page.extract_text() for page in paper.pages)
    assert 2 <= len(paper.pages) <= 18
    assert {tuple(round(float(side)) for side in page.mediabox[2:]) for page in paper.pages} == {(596, 842)}
    axis = "optimizer step"  # a text of the plots, which are drawn as such, not as pictures
    assert said.count(axis) >= (4 if name == "full" else 2)
    assert not any(page.images for page in paper.pages)
    for word in ("Zoom", "Select a span", "Skip to"):
        assert word not in said
    if name == "full":
        assert "model.revision" in said  # what is folded on the screen is not on paper
    browser.open(pages(name), dark=True)
    browser.run("Emulation.setEmulatedMedia", media="print", features=[])
    browser.js("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.js("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    plots = "[...document.querySelectorAll('.main-svg')]"
    widths = browser.js(f"return {plots}.map((s) => s.getBoundingClientRect().width)")
    assert set(widths) == {680}  # of the 688 between the margins of A4
    low = [entry for entry in browser.contrasts() if entry[0] < READABLE]
    assert low == []
    browser.js("window.dispatchEvent(new Event('afterprint'))")
    assert browser.js("return document.querySelectorAll('details[open]').length") == 0


@pytest.mark.parametrize("name", ["hostile", "hostile-compare", "hostile-plan"])
def test_hostile_texts_do_nothing(browser, pages, name):
    browser.open(pages(name))
    plots = {"hostile": "step-phases", "hostile-compare": "compare-step-times", "hostile-plan": "planned-memory"}
    browser.hover(plots[name], 0.99, 0.3)
    if name == "hostile":
        browser.hover("step-phases", 0.5)
        browser.hover("power", 0.5)
        browser.js("document.querySelector('#step-phases [data-tool=select]').click()")
        assert browser.wait("!document.getElementById('span').hidden")
        assert "<img src=x onerror" in browser.js("return document.getElementById('span').textContent")
    assert browser.js("return window.taken ?? null") is None
    assert browser.js("return document.querySelectorAll('img').length") == 0
    assert browser.messages() == []
    assert browser.requests() == []
    assert "<img src=x onerror" in browser.js("return document.querySelector('main').textContent")


def test_the_policy_stops_what_would_slip_through(browser, pages):
    path = pages("crashed").with_name("slipped.html")
    slipped = "<body><script>window.taken = 1</script><img src=x onerror='window.taken = 2'>"
    path.write_text(pages("crashed").read_text(encoding="utf-8").replace("<body>", slipped, 1), encoding="utf-8")
    browser.open(path)
    assert browser.js("return window.taken ?? null") is None
    assert sum("Content Security Policy" in message for message in browser.messages()) >= 2
