"""Drives the engine step by step: progress, expert health, and a polite end on SIGTERM or Ctrl-C."""

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from automoe.console import console, duration

Metrics = dict[str, Any]


class Trainer(Protocol):
    """What the loop needs of automoe.engine.Trainer."""

    def step(self) -> Metrics: ...
    def evaluate(self) -> Metrics: ...
    def save_checkpoint(self) -> str: ...
    def save_pretrained(self, folder: str) -> None: ...
    def total_steps(self) -> int: ...
    def finished_steps(self) -> int: ...
    def resumed_step(self) -> int: ...
    def done(self) -> bool: ...


@dataclass
class StopFlag:
    """Set by the first SIGTERM or Ctrl-C; the second Ctrl-C interrupts at once."""

    signal_name: str = ""

    def __bool__(self) -> bool:
        return bool(self.signal_name)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    flag = StopFlag()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, flag._handle) for number in numbers}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train(trainer: Trainer, stop: StopFlag) -> bool:
    """Steps until done, or told to stop: then a checkpoint is written. Returns whether it is complete."""
    total = trainer.total_steps()
    every = max(1, total // 20)
    warned: set[str] = set()
    columns = (
        TextColumn("[bold]step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TextColumn("{task.description}"),
        TimeRemainingColumn(compact=True),
        TextColumn("[dim]left"),
    )
    began, first = time.monotonic(), trainer.finished_steps()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total, completed=first)
        while not trainer.done() and not stop:
            metrics = trainer.step()
            step = trainer.finished_steps()
            left = (time.monotonic() - began) / max(1, step - first) * (total - step)
            progress.update(task, completed=step, description=_line(metrics))
            if not console.is_terminal and (step % every == 0 or trainer.done()):
                console.print(
                    f"  step {step}/{total}  {_line(metrics)}  {duration(left)} left", soft_wrap=True
                )
            for warning in health(metrics, first_step=step == 1):
                if warning not in warned:
                    warned.add(warning)
                    console.print(f"  [yellow]note:[/] {warning}")
    if trainer.done():
        return True
    path = trainer.save_checkpoint()
    console.print(
        f"{stop.signal_name}: stopped after step {trainer.finished_steps()} of {total}; saved {path}"
    )
    return False


def _line(metrics: Metrics) -> str:
    speed = metrics["tokens"] / metrics["seconds"] if metrics.get("seconds") else 0
    parts = [f"loss {metrics['loss']:.4f}"]
    if metrics.get("aux_loss"):
        parts.append(f"balance {metrics['aux_loss']:.3f}")
    parts += [
        f"lr {metrics['learning_rate']:.2e}",
        f"{speed:,.0f} tok/s",
        f"{metrics.get('memory_gib', 0):.1f} GiB",
    ]
    busiest = busiest_expert(metrics)
    if busiest is not None:
        parts.append(f"busiest expert {busiest:.1f}x")
    return "  ".join(parts)


def busiest_expert(metrics: Metrics) -> float | None:
    """Load of the fullest expert of any layer over the mean: 1 is perfect balance."""
    loads = [layer for layer in metrics.get("expert_load") or [] if sum(layer)]
    return max((max(layer) * len(layer) / sum(layer) for layer in loads), default=None)


def health(metrics: Metrics, *, first_step: bool) -> list[str]:
    """Plain words about what a curve would not show."""
    found = []
    if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["grad_norm"]):
        found.append("loss or gradient is not finite; lower the learning rate or use float32")
    if first_step and metrics["loss"] < 0.01:
        found.append(
            "the first loss is almost 0, so there is nothing to learn; look at the data: automoe data preview"
        )
    dead = sum(tokens == 0 for layer in metrics.get("expert_load") or [] for tokens in layer)
    if dead:
        found.append("some experts saw no token in a step; the report shows which")
    return found
