"""The README's pictures of a report, light and dark: docs/images/report-light.png and report-dark.png.

    python docs/pictures.py OUTPUT_DIR       after `hf-efficient train quickstart/qlora`

Needs chromium and chromedriver, and selenium of the `dev` extra.
"""

import argparse
import tempfile
from pathlib import Path

from selenium import webdriver

WIDTH, HEIGHT = 1200, 1120
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path, help="of a run")
    page = parser.parse_args().output_dir / "efficiency" / "report.html"
    if not page.is_file():
        parser.error(f"output_dir: there is no {page}. Name the OUTPUT_DIR of a run.")
    images = Path(__file__).with_name("images")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options)
        try:
            screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            for theme in ("light", "dark"):
                scheme = {"features": [{"name": "prefers-color-scheme", "value": theme}]}
                browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
                browser.get(page.resolve().as_uri())
                browser.save_screenshot(str(images / f"report-{theme}.png"))
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
