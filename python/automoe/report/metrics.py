"""metrics.jsonl as columns."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class History:
    """One entry a step, ascending. A step that a resumed run took again counts as it went last."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)  # step, held-out loss

    def column(self, name: str) -> tuple[list[int], list[float]]:
        kept = [(s["step"], float(s[name])) for s in self.steps if s.get(name) is not None]
        return [step for step, _ in kept], [value for _, value in kept]

    def speed(self) -> tuple[list[int], list[float]]:
        kept = [(s["step"], s["tokens"] / s["seconds"]) for s in self.steps if s.get("seconds")]
        return [step for step, _ in kept], [value for _, value in kept]

    def expert_load(self) -> list[list[list[int]]]:
        """[step][layer][expert], only steps that recorded it."""
        loads = [s["expert_load"] for s in self.steps if s.get("expert_load")]
        return [load for load in loads if [len(x) for x in load] == [len(x) for x in loads[-1]]]


def read_history(file: Path) -> History:
    steps: dict[int, dict[str, Any]] = {}
    evaluations: dict[int, float] = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # the last line of a killed run
        if "eval_loss" in entry:
            evaluations[entry["step"]] = float(entry["eval_loss"])
        elif "loss" in entry:
            steps[entry["step"]] = entry
    return History([steps[k] for k in sorted(steps)], sorted(evaluations.items()))


def smooth(values: list[float], weight: float = 0.85) -> list[float]:
    """Exponential average without the pull towards zero at the start."""
    out, total, norm = [], 0.0, 0.0
    for value in values:
        total, norm = weight * total + (1 - weight) * value, weight * norm + (1 - weight)
        out.append(total / norm)
    return out
