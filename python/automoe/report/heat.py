"""Expert load over time: one small picture a layer, experts downwards, steps to the right."""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np

COLUMNS = 160  # more steps than this are averaged
RANGE = 2.0  # octaves from the mean to the ends of the colour scale
COLD, EVEN, HOT = (0x2B, 0x6C, 0xB0), (0xF7, 0xF7, 0xF4), (0xC0, 0x4A, 0x1A)
DEAD = (0x1A, 0x1A, 0x2E)  # an expert that saw no token at all


def heat_maps(loads: Sequence[Sequence[Sequence[int]]]) -> str:
    """loads: [step][layer][expert] tokens. Colour is the load over the layer's mean."""
    figures = []
    for layer in range(len(loads[0])):
        ratio = load_ratio(np.array([step[layer] for step in loads], dtype=np.float64))  # [step, expert]
        image = picture(_binned(ratio).T)  # [expert, column]
        height = int(np.clip(8 * ratio.shape[1], 40, 160))
        last = ratio[-min(len(ratio), 10) :].mean(0)
        figures.append(
            f'<figure><img alt="expert load of layer {layer}" style="height:{height}px" src="{png(image)}">'
            f"<figcaption>MoE layer {layer}"
            f"<span>{last.min():.2f} to {last.max():.2f}</span></figcaption></figure>"
        )
    return f'<div class="heat">{"".join(figures)}</div>{_legend()}'


def load_ratio(load: np.ndarray) -> np.ndarray:
    """Load over the mean of its step: 1 everywhere is perfect balance. Steps without tokens count as even."""
    mean = load.mean(1, keepdims=True)
    return np.where(mean > 0, load / np.where(mean > 0, mean, 1), 1.0)


def imbalance(loads: Sequence[Sequence[Sequence[int]]]) -> tuple[list[float], list[float]]:
    """Per step: the fullest expert over the mean, averaged over the layers, and that of the worst layer."""
    peaks = np.array([[load_ratio(np.array([x], float)).max() for x in step] for step in loads])
    return peaks.mean(1).tolist(), peaks.max(1).tolist()


def picture(ratio: np.ndarray) -> np.ndarray:
    """Load ratios to colours, uint8 [..., 3], on a log scale; 0 has a colour of its own."""
    with np.errstate(divide="ignore"):
        octave = np.clip(np.log2(ratio) / RANGE, -1, 1)[..., None]
    even = np.array(EVEN, float)
    colours = np.where(
        octave < 0, even + (np.array(COLD) - even) * -octave, even + (np.array(HOT) - even) * octave
    )
    return np.where(ratio[..., None] == 0, np.array(DEAD), colours).round().astype(np.uint8)


def png(pixels: np.ndarray) -> str:
    """A data URI of [H, W, 3] uint8."""
    height, width, _ = pixels.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(raw, 9))
        + chunk(b"IEND", b"")
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _binned(ratio: np.ndarray) -> np.ndarray:
    if len(ratio) <= COLUMNS:
        return ratio
    return np.stack([part.mean(0) for part in np.array_split(ratio, COLUMNS)])


def _legend() -> str:
    strip = picture(2.0 ** np.linspace(-RANGE, RANGE, 96)[None, :])
    dead = f'<i style="background:rgb{DEAD}"></i>'
    return (
        f'<p class="legend">a quarter of the mean <img alt="" src="{png(strip)}"> four times the mean '
        f"<span>{dead} no token</span></p>"
    )
