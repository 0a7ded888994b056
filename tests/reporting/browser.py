"""A headless Chromium without a network, and what the tests ask of a page in it."""

import base64
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

OFF = [f"--disable-{one}" for one in ("gpu", "dev-shm-usage", "background-networking", "component-update", "sync")]
FLAGS = ("--headless=new", "--no-sandbox", "--no-first-run", "--window-size=1280,900", *OFF)
DRAWN_WITHIN_SECONDS = 30

# Every visible text with the contrast of its colour against what lies behind it, as WCAG 2 defines it.
CONTRASTS = """
const parse = (text) => { const m = text.match(/[\\d.]+/g).map(Number); return [m[0], m[1], m[2], m[3] ?? 1]; };
const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3]));
const lum = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => {
  const v = c[i] / 255; return sum + w * (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
const ground = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
};
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim();
  const element = walker.currentNode.parentElement;
  if (!text || ['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(element.tagName) || !element.checkVisibility()) continue;
  const style = getComputedStyle(element);
  const svg = element.closest('svg');
  const colour = parse(svg ? style.fill : style.color);
  let below = ground(svg ? svg.parentElement : element);
  const label = svg && element.closest('.hovertext, .hoverlayer .legend');
  if (label) below = over(parse(getComputedStyle(label.querySelector('path, rect.bg')).fill), below);
  const [a, b] = [lum(over(colour, below)), lum(below)].sort((x, y) => y - x);
  found.push([Math.round(100 * (a + 0.05) / (b + 0.05)) / 100, text.slice(0, 40), element.tagName]);
}
return found;
"""


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver
        self.run("Network.enable")
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self.run("Network.emulateNetworkConditions", **offline)

    def run(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.messages(), self.requests()  # of the page before
        self.resize(width, height)
        self.scheme(dark)
        self.driver.get(path.as_uri())
        end = time.monotonic() + DRAWN_WITHIN_SECONDS
        while self.js("return document.documentElement.dataset.plots") != "drawn":
            assert time.monotonic() < end, f"not drawn: {self.messages()}"
            time.sleep(0.02)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.run("Emulation.setDeviceMetricsOverride", **metrics)

    def scheme(self, dark: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.run("Emulation.setEmulatedMedia", media="", features=[feature])

    def messages(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        urls = [one["request"]["url"] for one in asked if one["documentURL"].startswith("file:")]
        return [url for url in urls if not url.startswith(("file:", "data:"))]

    def contrasts(self) -> list[tuple[float, str, str]]:
        return sorted(tuple(entry) for entry in self.js(CONTRASTS))

    def drag(self, plot: str, start: float, end: float) -> None:
        self.js(f"document.querySelector('#{plot} .plot').scrollIntoView({{block: 'center'}})")
        box = self.js(f"return document.querySelector('#{plot} .nsewdrag').getBoundingClientRect().toJSON()")
        y = box["top"] + box["height"] / 2
        places = [box["left"] + box["width"] * (start + (end - start) * part / 4) for part in range(5)]
        self._mouse("mouseMoved", places[0], y, buttons=0)
        self._mouse("mousePressed", places[0], y)
        for x in places[1:]:
            self._mouse("mouseMoved", x, y)
        self._mouse("mouseReleased", places[-1], y, buttons=0)

    def hover(self, plot: str, across: float, down: float = 0.5) -> str:
        self.js(f"document.querySelector('#{plot} .plot').scrollIntoView({{block: 'center'}})")
        box = self.js(f"return document.querySelector('#{plot} .nsewdrag').getBoundingClientRect().toJSON()")
        x, y = box["left"] + box["width"] * across, box["top"] + box["height"] * down
        for shift in (-2, -1, 0):
            self._mouse("mouseMoved", x + shift, y, buttons=0)
        layer = f"document.querySelector('#{plot} .hoverlayer').textContent"
        return str(self.wait(layer))

    def _mouse(self, kind: str, x: float, y: float, buttons: int = 1) -> None:
        button = "none" if kind == "mouseMoved" and not buttons else "left"
        self.run("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, buttons=buttons, clickCount=1)

    def wait(self, expression: str, seconds: float = 5) -> Any:
        end = time.monotonic() + seconds
        while not (value := self.js(f"return {expression}")) and time.monotonic() < end:
            time.sleep(0.02)
        return value

    def pdf(self) -> bytes:
        made = self.run("Page.printToPDF", preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69)
        return base64.b64decode(made["data"])


def start_browser(profile: Path) -> Browser:
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        told = "chromium and chromedriver are needed: apt-get install chromium chromium-driver"
        if os.environ.get("CI"):
            pytest.fail(told)
        pytest.skip(told)
    options = Options()
    options.binary_location = binary
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Browser(webdriver.Chrome(options=options, service=Service(driver)))
