"""The one console, and how errors and durations read on it."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

console = Console(highlight=False)


def friendly(command: Callable[..., Any]) -> Callable[..., Any]:
    """A user's mistake is one red paragraph and exit code 2; anything else keeps its traceback."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (ValueError, FileNotFoundError) as error:
            Console(stderr=True, highlight=False).print(
                f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True
            )
            raise typer.Exit(2) from None

    return run


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Says what begins, and afterwards how long it took."""
    began = time.monotonic()
    console.print(f"[bold cyan]•[/] {what}", soft_wrap=True)
    yield
    console.print(f"  [dim]done in {duration(time.monotonic() - began)}[/]")


def duration(seconds: float) -> str:
    """4.2 s, 3 min 05 s, 2 h 07 min."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def count(number: float) -> str:
    """1234567 as 1.2M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:g}"


def gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.0f} MiB"
