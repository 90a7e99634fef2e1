"""What preparation did with the rows, in a few lines for a person."""

from rich.markup import escape

from automoe.console import console, count, duration
from automoe.data.prepare import PrepareSummary, SplitSummary


def describe(summary: PrepareSummary) -> None:
    for name, split in summary.splits.items():
        share = 100 * split.trained_tokens / split.tokens if split.tokens else 0
        console.print(
            f"  [bold]{name:5}[/] {split.rows:,} rows -> {split.documents:,} documents, "
            f"{count(split.tokens)} tokens, "
            f"{share:.0f}% trained, longest {split.max_document}",
            soft_wrap=True,
        )
        for line in _remarks(split):
            console.print(f"        [yellow]{line}[/]")
    if "eval" not in summary.splits:
        console.print("  [yellow]nothing held out: pass --eval-data, or a larger --eval-split[/]")
    if summary.problems.found:
        console.print("  [yellow]left out (all of them in dropped.jsonl):[/]")
        console.print(escape(summary.problems.describe()), soft_wrap=True)
    if not summary.reused:
        console.print(f"  [dim]took {duration(summary.seconds)}[/]")


def _remarks(split: SplitSummary) -> list[str]:
    remarks = {
        f"{split.bad_rows} bad rows skipped": split.bad_rows,
        f"{split.dropped_overlong} rows longer than max_length dropped": split.dropped_overlong,
        f"{split.nothing_to_train} rows without a token to train on dropped": split.nothing_to_train,
        f"{split.split_rows} long texts split, {split.extra_pieces} more pieces": split.split_rows,
        f"{split.truncated} rows cut off at max_length": split.truncated,
        f"{split.endless_turns} replies without an end token: no stop is learnt": split.endless_turns,
    }
    return [text for text, number in remarks.items() if number]
