"""Line charts as inline SVG, drawn by hand: no library, no network."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

HEIGHT = 260
NARROW, WIDE = 460, 1010
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 12, 30


@dataclass(frozen=True)
class Series:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: str  # a CSS class of the page: main, faint, points, second


def line_chart(series: Sequence[Series], *, label: str, log: bool = False, width: int = NARROW) -> str:
    """All series over one pair of axes. Values that are not finite leave a gap."""
    finite = [
        (x, y)
        for s in series
        for x, y in zip(s.x, s.y, strict=True)
        if math.isfinite(y) and (y > 0 or not log)
    ]
    if not finite:
        return '<p class="none">nothing recorded</p>'
    x_axis = _Axis([x for x, _ in finite], LEFT, width - RIGHT, log=False, pad=0.0)
    y_axis = _Axis([y for _, y in finite], HEIGHT - BOTTOM, TOP, log=log, pad=0.06)
    parts = [_grid(x_axis, y_axis, width), *(_curve(s, x_axis, y_axis, log) for s in series)]
    hover = [
        {
            "name": s.name,
            "x": [round(x_axis.place(x), 1) for x in s.x],
            "step": list(s.x),
            "y": [_short(y) for y in s.y],
        }
        for s in series
    ]
    return (
        f'<svg class="chart" viewBox="0 0 {width} {HEIGHT}" role="img" aria-label="{escape(label)}" '
        f"data-hover='{escape(json.dumps(hover), quote=True)}'>{''.join(parts)}"
        f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" x1="-9" x2="-9"/></svg>'
    )


class _Axis:
    def __init__(self, values: Sequence[float], begin: float, end: float, *, log: bool, pad: float) -> None:
        self.log, self.begin, self.end = log, begin, end
        low, high = min(map(self._scale, values)), max(map(self._scale, values))
        margin = (high - low) * pad if high > low else 0.05 if log else abs(high) * 0.05 or 0.05
        self.low, self.high = low - margin, high + margin
        if pad and not log and low >= 0:
            self.low = max(0.0, self.low)

    def _scale(self, value: float) -> float:
        return math.log10(value) if self.log else value

    def place(self, value: float) -> float:
        return self.begin + (self._scale(value) - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values along the axis with their labels."""
        if self.log:
            powers = range(math.floor(self.low), math.ceil(self.high) + 1)
            for factors in ((1,), (1, 2, 5)):
                values = [f * 10.0**e for e in powers for f in factors]
                values = [v for v in values if self.low <= math.log10(v) <= self.high]
                if len(values) >= 3:
                    return [(value, _short(value)) for value in values]
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        raw = (high - low) / 5
        size = 10 ** math.floor(math.log10(raw))
        step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= raw)
        values = [i * step for i in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]
        if step < 1 and high >= 1e-3:  # neighbours must not round to one label
            digits = -math.floor(math.log10(step)) + (step / size == 2.5)
            return [(value, f"{value:.{digits}f}") for value in values]
        return [(value, _short(value)) for value in values]


def _grid(x_axis: _Axis, y_axis: _Axis, width: int) -> str:
    parts = []
    for value, label in y_axis.ticks():
        y = y_axis.place(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for value, label in x_axis.ticks():
        if value == int(value):
            x = x_axis.place(value)
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>'
            )
    return "".join(parts)


def _curve(series: Series, x_axis: _Axis, y_axis: _Axis, log: bool) -> str:
    runs: list[list[str]] = [[]]
    for x, y in zip(series.x, series.y, strict=True):
        if math.isfinite(y) and (y > 0 or not log):
            runs[-1].append(f"{x_axis.place(x):.1f},{y_axis.place(y):.1f}")
        elif runs[-1]:
            runs.append([])
    if series.style == "points":
        dots = (point.split(",") for run in runs for point in run)
        return "".join(f'<circle class="points" cx="{x}" cy="{y}" r="4.5"/>' for x, y in dots)
    lines = (f'<polyline class="{series.style}" points="{" ".join(run)}"/>' for run in runs if run)
    return "".join(lines)


def _short(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 10_000 or (0 < size < 0.001):
        return (
            f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
            if size < 0.001 or size >= 1e6
            else f"{value:,.0f}"
        )
    return f"{value:.4g}"
