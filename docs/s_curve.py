"""The picture of the chance that near duplicates are found: docs/images/s-curve.svg.

python docs/s_curve.py
"""

from pathlib import Path

SETTINGS = (((14, 8), "#2383d2", "14 bands of 8"), ((20, 5), "#de9b24", "20 bands of 5"))
WIDTH, HEIGHT, LEFT, TOP = 520, 260, 60, 20


def place(similarity: float, chance: float) -> str:
    return f"{LEFT + similarity * WIDTH:.1f},{TOP + (1 - chance) * HEIGHT:.1f}"


def main() -> None:
    drawn = []
    for number in range(6):
        part, label = number / 5, f"{20 * number}%"
        x, y = place(part, part).split(",")
        drawn.append(
            f'<path d="M{place(0, part)}H{LEFT + WIDTH}M{place(part, 0)}V{TOP}" stroke="#7a828c" opacity=".3"/>'
        )
        drawn.append(f'<text x="{x}" y="{TOP + HEIGHT + 20}" text-anchor="middle">{label}</text>')
        drawn.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{label}</text>')
    for number, ((bands, rows), color, label) in enumerate(SETTINGS):
        chances = [1 - (1 - (step / 100) ** rows) ** bands for step in range(101)]
        points = " ".join(place(step / 100, chance) for step, chance in enumerate(chances))
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        drawn.append(f'<text x="{LEFT + 14}" y="{TOP + 24 + 20 * number}" fill="{color}">{label}</text>')
    below = "shared shingles of two texts (Jaccard similarity); upwards: chance that they are found"
    drawn.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 42}" text-anchor="middle">{below}</text>')
    size = f'width="{WIDTH + LEFT + 30}" height="{HEIGHT + TOP + 56}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13" fill="#7a828c">'
    text = "\n".join([head, *drawn, "</svg>"]) + "\n"
    (Path(__file__).with_name("images") / "s-curve.svg").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
