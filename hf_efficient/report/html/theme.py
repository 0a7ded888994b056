"""The colours of the page, light and dark; text on them has a contrast of at least 4.5 : 1."""

from __future__ import annotations

__all__ = ["DARK", "LIGHT", "theme_css"]

LIGHT = {
    "page": "#ffffff",
    "panel": "#f6f7f9",
    "line": "#e2e5ea",
    "line-strong": "#b9c0ca",
    "text": "#14181f",
    "muted": "#57606c",
    "link": "#0b5cad",
    "good": "#196b3a",
    "warn": "#855300",
    "bad": "#b3261e",
}
DARK = {
    "page": "#101318",
    "panel": "#181c23",
    "line": "#2a303a",
    "line-strong": "#4a5362",
    "text": "#e8ebf0",
    "muted": "#9ba6b4",
    "link": "#74b5f7",
    "good": "#62cf8d",
    "warn": "#eab45c",
    "bad": "#ff9086",
}


def theme_css() -> str:
    """Variables: light; dark where the system or the button says so; always light on paper."""
    light, dark = (" ".join(f"--{name}: {value};" for name, value in scheme.items()) for scheme in (LIGHT, DARK))
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-scheme="light"]) '
        f"{{ color-scheme: dark; {dark} }} }}\n"
        f'@media screen {{ :root[data-scheme="dark"] {{ color-scheme: dark; {dark} }} }}\n'
    )
