"""Puts the page together: figures, curves, experts, samples, data, settings."""

from html import escape
from pathlib import Path
from typing import Any

from automoe.console import count, duration
from automoe.report.charts import WIDE, Series, line_chart
from automoe.report.heat import heat_maps, imbalance
from automoe.report.metrics import History, read_history, smooth

ASSETS = Path(__file__).parent


def write_report(folder: Path, record: dict[str, Any]) -> Path:
    """Writes folder/index.html from folder/metrics.jsonl and the run's record (settings, data, samples)."""
    history = read_history(folder / "metrics.jsonl")
    body = "".join(
        [
            _header(record),
            _tiles(history, record),
            _curves(history, record),
            _experts(history),
            _samples(record),
            _data(record),
            _settings(record),
        ]
    )
    page = (ASSETS / "page.html").read_text()
    page = page.replace("{{title}}", escape(_title(record))).replace("{{body}}", body)
    target = folder / "index.html"
    temporary = folder / ".index.html.tmp"
    temporary.write_text(page, encoding="utf-8")
    temporary.replace(target)
    return target


def _title(record: dict[str, Any]) -> str:
    return f"Fine-tuning {Path(str(record.get('settings', {}).get('model', 'a model'))).name}"


def _header(record: dict[str, Any]) -> str:
    lines = record.get("banner", {})
    facts = "".join(f"<li><b>{escape(k)}</b><span>{escape(str(v))}</span></li>" for k, v in lines.items())
    title = f"<p class='brand'>automoe</p><h1>{escape(_title(record))}</h1>"
    return f"<header>{title}<ul class='banner'>{facts}</ul></header>"


def _tiles(history: History, record: dict[str, Any]) -> str:
    tiles = []
    before, after = record.get("eval_before"), record.get("eval_after")
    if before and after:
        tiles.append(("held-out loss", f"{before['loss']:.3f} <i>→</i> {after['loss']:.3f}"))
        tiles.append(("perplexity", f"{before['perplexity']:.1f} <i>→</i> {after['perplexity']:.1f}"))
    if history.steps:
        tokens = sum(s.get("tokens", 0) for s in history.steps)
        seconds = sum(s.get("seconds", 0) for s in history.steps)
        tiles.append(("steps", f"{history.steps[-1]['step']:,}"))
        tiles.append(("tokens", count(tokens)))
        tiles.append(("training time", duration(seconds)))
        if seconds:
            tiles.append(("throughput", f"{tokens / seconds:,.0f} <small>tokens/s</small>"))
        peak = max((s.get("memory_gib") or 0 for s in history.steps), default=0)
        if peak:
            tiles.append(("peak memory", f"{peak:.1f} <small>GiB</small>"))
    cells = "".join(f"<div><p>{name}</p><strong>{value}</strong></div>" for name, value in tiles)
    verdict = record.get("verification")
    proof = f"<p class='proof'>Reloaded with plain Transformers: {escape(verdict)}.</p>" if verdict else ""
    return f"<section class='tiles'>{cells}</section>{proof}"


def _curves(history: History, record: dict[str, Any]) -> str:
    x, loss = history.column("loss")
    points = dict(history.evaluations)
    if record.get("eval_before"):
        points.setdefault(0, record["eval_before"]["loss"])
    if record.get("eval_after") and x:
        points[x[-1]] = record["eval_after"]["loss"]
    held_out = Series("held-out", sorted(points), [points[k] for k in sorted(points)], "points")
    curves = [
        Series("loss of the step", x, loss, "faint"),
        Series("smoothed", x, smooth(loss), "main"),
        held_out,
    ]
    loss_figure = _figure(
        "Loss",
        line_chart(curves, label="training and held-out loss", width=WIDE),
        wide=True,
        legend=curves,
    )
    figures = []
    for title, name, log in (
        ("Learning rate", "learning_rate", False),
        ("Gradient norm", "grad_norm", True),
    ):
        steps, values = history.column(name)
        figures.append(
            _figure(
                title,
                line_chart([Series(title.lower(), steps, values, "main")], label=title, log=log),
            )
        )
    steps, speed = history.speed()
    figures.append(
        _figure(
            "Tokens a second",
            line_chart([Series("tokens/s", steps, speed, "main")], label="throughput"),
        )
    )
    steps, aux = history.column("aux_loss")
    if any(aux):
        figures.append(
            _figure(
                "Balance loss",
                line_chart([Series("balance loss", steps, aux, "main")], label="balance"),
            )
        )
    columns = "three" if len(figures) == 3 else "two"
    return f"<section class='grid {columns}'>{loss_figure}{''.join(figures)}</section>"


def _figure(title: str, chart: str, *, wide: bool = False, legend: list[Series] | None = None) -> str:
    keys = "".join(f"<span class='key {s.style}'>{s.name}</span>" for s in legend or [] if s.x)
    return f"<article class='{'wide' if wide else ''}'><h2>{title}{keys}</h2>{chart}</article>"


def _experts(history: History) -> str:
    loads = history.expert_load()
    if not loads:
        return ""
    steps = [s["step"] for s in history.steps if s.get("expert_load")][-len(loads) :]
    mean, worst = imbalance(loads)
    chart = [
        Series("mean of the layers", steps, mean, "main"),
        Series("worst layer", steps, worst, "second"),
    ]
    return (
        "<section><h2 class='part'>Experts</h2><p class='note'>Tokens an expert receives, over the mean of "
        "its layer: 1 is perfect balance. Experts run downwards, steps to the right; the numbers are the "
        "range over the last ten steps.</p><div class='grid'>"
        + _figure(
            "Busiest expert over the mean",
            line_chart(chart, label="imbalance", width=WIDE),
            wide=True,
            legend=chart,
        )
        + f"</div>{heat_maps(loads)}</section>"
    )


def _samples(record: dict[str, Any]) -> str:
    cards = []
    for sample in record.get("samples", []):
        columns = "".join(
            f"<div class='{key}'><p>{key}</p><blockquote>{escape(str(sample[key]))}</blockquote></div>"
            for key in ("before", "after", "reference")
            if sample.get(key) is not None
        )
        cards.append(
            f"<article class='sample'><h3>{escape(str(sample['prompt']))}</h3><div>{columns}</div></article>"
        )
    return f"<section><h2 class='part'>Samples</h2>{''.join(cards)}</section>" if cards else ""


def _data(record: dict[str, Any]) -> str:
    splits = record.get("data", {})
    if not splits:
        return ""
    names = list(next(iter(splits.values())))
    rows = "".join(
        f"<tr><th>{name.replace('_', ' ')}</th>"
        + "".join(f"<td>{split[name]:,}</td>" for split in splits.values())
        + "</tr>"
        for name in names
    )
    head = "".join(f"<th>{name}</th>" for name in splits)
    return f"<section><h2 class='part'>Data</h2><table><tr><th></th>{head}</tr>{rows}</table></section>"


def _settings(record: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>"
        for k, v in record.get("settings", {}).items()
    )
    table = f"<table class='settings'>{rows}</table>"
    return f"<section><details><summary>Settings</summary>{table}</details></section>"
