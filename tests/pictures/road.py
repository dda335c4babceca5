"""The road of one event as an SVG, made from ``road.toml``: stations from left to right, row by row, with arrows."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


FILE = Path(__file__).with_name("road.toml")
WIDTH, BOX, HIGH, GAP, TOP, LEFT = 904, 244, 104, 66, 56, 20
ROW = 184
INK, FAINT, FONT = "#1c2733", "#5b6b7b", "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def svg() -> str:
    made = tomllib.loads(FILE.read_text(encoding="utf-8"))
    rows: Sequence[Mapping[str, Any]] = made["rows"]
    height = TOP + ROW * len(rows) - 36
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" role="img">',
        f"<title>{escape(made['title'])}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L10 5L0 10z" fill="{FAINT}"/></marker></defs>',
        _text(LEFT, 34, made["title"], size=19, weight=600),
    ]
    for number, row in enumerate(rows):
        parts += _row(row, TOP + number * ROW)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _row(row: Mapping[str, Any], top: int) -> list[str]:
    stations: Sequence[Mapping[str, Any]] = row["stations"]
    parts = [_text(LEFT, top + 14, row["where"], size=14, color=FAINT)]
    box_top = top + 24
    for place, station in enumerate(stations):
        x = LEFT + place * (BOX + GAP)
        parts.append(
            f'<rect x="{x}" y="{box_top}" width="{BOX}" height="{HIGH}" rx="9" fill="{row["fill"]}" stroke="{FAINT}"/>'
        )
        parts.append(_text(x + 14, box_top + 27, station["name"], size=16, weight=600))
        for line, text in enumerate(station["lines"]):
            parts.append(_text(x + 14, box_top + 50 + 19 * line, text, size=13.5))
        if station.get("then"):
            y = box_top + HIGH / 2
            parts.append(_arrow(f"M{x + BOX + 5} {y}H{x + BOX + GAP - 5}"))
            parts.append(_text(x + BOX + GAP / 2, y - 9, station["then"], size=12, color=FAINT, anchor="middle"))
    if row.get("onward"):
        x = LEFT + (len(stations) - 1) * (BOX + GAP) + BOX // 2
        turn, down = box_top + HIGH + 17, box_top + HIGH + 49
        parts.append(_arrow(f"M{x} {box_top + HIGH + 4}V{turn}H{LEFT + BOX / 2}V{down}"))
        parts.append(_text((x + LEFT + BOX / 2) / 2, turn - 5, row["onward"], size=12, color=FAINT, anchor="middle"))
    return parts


def _arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="{FAINT}" stroke-width="1.6" marker-end="url(#tip)"/>'


def _text(
    x: float, y: float, text: str, *, size: float, weight: int = 400, color: str = INK, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{color}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
