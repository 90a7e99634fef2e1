"""Prepared data is made once: while sources, tokenizer and settings stay the same it is found again."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from automoe.data.folder import PreparedFolder
from automoe.data.prepare import PrepareConfig, PrepareSummary, SplitSummary, fingerprint, prepare


def prepare_once(
    config: PrepareConfig, tokenizer: Any, on_row: Callable[[int], None] | None = None
) -> PrepareSummary:
    """prepare(), unless config.out already holds exactly what it would write."""
    found = load_summary(config.out)
    current = fingerprint(config, tokenizer)
    if found and found["fingerprint"] == current and _whole(config.out, found["splits"]):
        splits = {name: SplitSummary(**values) for name, values in found["splits"].items()}
        return PrepareSummary(splits, eos_token_ids=found["eos_token_ids"], reused=True)
    (config.out / "summary.json").unlink(missing_ok=True)
    summary = prepare(config, tokenizer, on_row)
    written = {
        "fingerprint": current,
        "eos_token_ids": summary.eos_token_ids,
        "splits": {name: asdict(split) for name, split in summary.splits.items()},
    }
    (config.out / "summary.json").write_text(json.dumps(written, indent=2) + "\n")
    return summary


def load_summary(out: Path) -> dict[str, Any] | None:
    file = out / "summary.json"
    return json.loads(file.read_text()) if file.is_file() else None


def _whole(out: Path, splits: dict[str, Any]) -> bool:
    try:
        return all(len(PreparedFolder(out / name)) == s["documents"] for name, s in splits.items())
    except (ValueError, OSError):
        return False
