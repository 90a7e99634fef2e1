"""The report: complete, self-contained, and true to the metrics."""

import base64
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from automoe.report import write_report
from automoe.report.charts import Series, line_chart
from automoe.report.heat import imbalance, load_ratio, picture, png
from automoe.report.metrics import read_history, smooth


def metrics(step, **changes):
    base = {
        "step": step,
        "loss": 3.0 / step,
        "aux_loss": 0.0,
        "grad_norm": 1.0,
        "learning_rate": 1e-4,
        "tokens": 100,
    }
    return {**base, "seconds": 0.5, "memory_gib": 2.0, "expert_load": [[1, 2, 3], [2, 2, 2]], **changes}


RECORD = {
    "settings": {"model": "a/b", "prompts": ["<script>alert(1)</script>"]},
    "banner": {"model": "X"},
    "data": {"train": {"rows": 5, "documents": 4}, "eval": {"rows": 1, "documents": 1}},
    "samples": [{"prompt": "<b>Hi & bye</b>", "before": "a", "after": "b", "reference": None}],
    "eval_before": {"loss": 3.5, "perplexity": 33.1},
    "eval_after": {"loss": 2.0, "perplexity": 7.4},
    "verification": "logits agree",
}


def write(folder, entries):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return write_report(folder, RECORD).read_text()


class Outline(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.urls, self.seen = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.urls += [value for name, value in attrs if name in ("src", "href") and value]
        if tag not in ("meta", "img", "line", "br", "circle", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_needs_no_network_and_is_well_formed(tmp_path):
    page = write(tmp_path, [metrics(s) for s in range(1, 40)])
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.urls and all(url.startswith("data:") for url in outline.urls)
    assert not re.search(r"https?://|@import|url\(", page)
    assert len(page) < 300_000


def test_everything_promised_is_on_the_page(tmp_path):
    page = write(tmp_path, [metrics(s, aux_loss=0.1) for s in range(1, 9)])
    for words in (
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Tokens a second",
        "Balance loss",
        "MoE layer 1",
        "Samples",
    ):
        assert words in page
    assert "3.500 <i>→</i> 2.000" in page and "logits agree" in page and "200 <small>tokens/s" in page


def test_text_of_users_and_models_is_escaped(tmp_path):
    page = write(tmp_path, [metrics(1)])
    assert "<script>alert" not in page and "&lt;b&gt;Hi &amp; bye&lt;/b&gt;" in page


@pytest.mark.parametrize(
    "entries", [[], [metrics(1)], [metrics(1, expert_load=None)], [metrics(1, loss=float("nan"))]]
)
def test_short_odd_and_empty_runs_still_give_a_page(tmp_path, entries):
    page = write(tmp_path, entries)
    assert "</html>" in page and ("MoE layer" in page) == bool(entries and entries[0]["expert_load"])


def test_a_step_taken_again_after_a_resume_counts_once_and_a_torn_line_is_left_out(tmp_path):
    lines = [
        metrics(1),
        metrics(2),
        metrics(3, loss=9.0),
        {"step": 2, "eval_loss": 2.5},
        metrics(3, loss=1.5),
        metrics(4),
    ]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 5, "lo')
    history = read_history(file)
    assert history.column("loss") == ([1, 2, 3, 4], [3.0, 1.5, 1.5, 0.75])
    assert history.evaluations == [(2, 2.5)]


def test_curves_stand_where_the_values_are():
    svg = line_chart([Series("a", [0, 10], [1.0, 3.0], "main")], label="x")
    points = re.search(r'polyline class="main" points="([^"]+)"', svg).group(1).split()
    (x0, y0), (x1, y1) = (tuple(map(float, p.split(","))) for p in points)
    assert x0 < x1 and y0 > y1  # larger values stand higher
    gap = line_chart([Series("a", [0, 1, 2, 3, 4], [1, 2, float("nan"), 3, 4], "main")], label="x")
    assert gap.count("<polyline") == 2


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [(2.0012, 2.0019), (3, 47), (0.2, 5), (1e-6, 3e-5), (1, 1), (7, 90_000)])
def test_every_axis_has_at_least_two_labels_and_no_label_twice(values, log):
    svg = line_chart([Series("a", [0, 30], values, "main")], label="x", log=log)
    labels = re.findall(r'text-anchor="end">([^<]+)<', svg)
    assert len(labels) >= 2 and len(set(labels)) == len(labels), labels


def test_smoothing_keeps_a_constant_and_starts_at_the_first_value():
    assert smooth([2.0] * 7) == pytest.approx([2.0] * 7)
    assert smooth([5.0, 1.0])[0] == pytest.approx(5.0)


def test_load_ratios_and_imbalance_are_over_the_mean():
    np.testing.assert_allclose(load_ratio(np.array([[1.0, 3.0], [0.0, 0.0]])), [[0.5, 1.5], [1.0, 1.0]])
    mean, worst = imbalance([[[1, 3], [2, 2]]])
    assert mean == [1.25] and worst == [1.5]


def test_colours_tell_dead_cold_even_and_hot_experts_apart():
    dead, cold, even, hot = picture(np.array([[0.0, 0.25, 1.0, 4.0]]))[0].astype(int)
    assert tuple(even) == (0xF7, 0xF7, 0xF4) and cold[2] > cold[0] and hot[0] > hot[2]
    assert len({tuple(c) for c in (dead, cold, even, hot)}) == 4


def test_the_heat_map_picture_is_a_valid_png_of_its_pixels():
    pixels = np.arange(30, dtype=np.uint8).reshape(2, 5, 3)
    data = base64.b64decode(png(pixels).partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[16:24] == (5).to_bytes(4, "big") + (2).to_bytes(4, "big")
    body = data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8]
    assert zlib.decompress(body) == b"".join(b"\0" + row.tobytes() for row in pixels)
