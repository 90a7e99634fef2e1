"""automoe data prepare | preview | check."""

from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from pydantic import Field
from rich.progress import Progress, SpinnerColumn, TextColumn

from automoe.console import console, friendly
from automoe.data.settings import DataSettings
from automoe.options import flags_of

app = typer.Typer(no_args_is_help=True, help="Prepare, look at and check training data.")

Model = Annotated[
    str, typer.Option("--model", "-m", help="Folder or id of the model whose tokenizer is used.")
]
Template = Annotated[
    Path | None, typer.Option("--chat-template", help="Jinja file instead of the tokenizer's own.")
]


class PrepareSettings(DataSettings):
    aliases: ClassVar[dict[str, str]] = {
        "out": "output_dir",
        "dataset": "data",
        "max_seq_length": "max_length",
        "tokenizer": "model",
    }

    model: str = Field(description="Folder or id of the model whose tokenizer and chat template are used.")
    output_dir: Path = Field(Path("prepared"), description="Gets train/ and eval/.")


@app.command("prepare")
@flags_of(PrepareSettings, positional="data")
@friendly
def prepare(config: Path | None, flags: dict[str, Any]) -> None:
    """Turn data files into a prepared folder that the engine maps into memory."""
    settings = PrepareSettings.from_yaml(config, flags)
    from automoe.data.describe import describe
    from automoe.data.prepare import prepare
    from automoe.source import load_tokenizer, local_folder

    tokenizer = load_tokenizer(local_folder(settings.model, weights=False), settings.chat_template)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True
    ) as progress:
        task = progress.add_task("reading")
        summary = prepare(
            settings.prepare_config(settings.output_dir),
            tokenizer,
            lambda rows: progress.update(task, description=f"{rows:,} rows"),
        )
    describe(summary)
    console.print(f"prepared [bold]{settings.output_dir}[/]")


@app.command("preview")
@friendly
def preview(
    data: Annotated[Path, typer.Argument(help="Data file or folder, or a prepared folder.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="A prepared folder knows its own.")
    ] = None,
    row: Annotated[int, typer.Option(min=1, help="Which row to show first.")] = 1,
    rows: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 1,
    max_length: Annotated[int, typer.Option(help="Where a row would be too long.")] = 1024,
    chat_template: Template = None,
    plain: Annotated[bool, typer.Option(help="As in data prepare.")] = False,
) -> None:
    """Show examples with their loss mask in colour: trained, read only, beyond max_length."""
    from automoe.data.folder import PreparedFolder
    from automoe.data.preview import preview
    from automoe.source import load_tokenizer, local_folder

    if (data / "train" / "meta.json").is_file():
        data = data / "train"
    if model is None:
        if not (data / "meta.json").is_file():
            raise ValueError(
                "[data] --model is needed to tokenize this; only a prepared folder knows its own"
            )
        model = PreparedFolder(data).meta["tokenizer"]
    tokenizer = load_tokenizer(local_folder(model, weights=False), chat_template)
    preview(data, tokenizer, first=row, rows=rows, max_length=max_length, plain=plain)


@app.command("check")
@friendly
def check(
    data: Annotated[Path, typer.Argument(help="Data file or folder.")],
    model: Model,
    max_length: Annotated[int, typer.Option(help="Longest document in tokens.")] = 1024,
    chat_template: Template = None,
    split: Annotated[str | None, typer.Option(help="Split of a saved DatasetDict.")] = None,
    plain: Annotated[bool, typer.Option(help="As in data prepare.")] = False,
) -> None:
    """Count rows, formats, roles and lengths, find bad rows. Exit code 1 if any row is bad."""
    from automoe.data.check import check, show
    from automoe.source import load_tokenizer, local_folder

    tokenizer = load_tokenizer(local_folder(model, weights=False), chat_template)
    found = check(data, tokenizer, split=split, max_length=max_length, plain=plain)
    show(found, tokenizer)
    if found.problems.found:
        raise typer.Exit(1)
