"""automoe doctor."""

import typer
from rich.markup import escape
from rich.table import Table

from automoe.console import console

COLOURS = {"ok": "green", "off": "yellow", "bad": "bold red"}


def doctor() -> None:
    """What was found on this machine, what is used, why not the rest. Exit code 1 if it cannot train."""
    from automoe.doctor import examine

    findings = examine()
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        mark = f"[{COLOURS[finding.state]}]{finding.state:>3}[/]"
        table.add_row(mark, f"[bold]{finding.what}[/]", escape(finding.text))
    console.print(table)
    if any(finding.state == "bad" for finding in findings):
        raise typer.Exit(1)
