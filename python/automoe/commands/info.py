"""automoe info."""

from typing import Annotated

import typer
from rich.table import Table

from automoe.console import console, count, friendly, gib


@friendly
def info(model: Annotated[str, typer.Argument(help="Model folder or repository id.")]) -> None:
    """Architecture, sizes, active parameters, and whether the engine runs it natively. Reads no weights."""
    from automoe.model_info import model_info
    from automoe.source import local_folder

    folder = local_folder(model, weights=False)
    found = model_info(folder)
    config = found.config
    weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    rows = {
        "architecture": found.architecture,
        "runs": "natively" if found.native else "through Transformers (no native file for this architecture)",
        "parameters": f"{found.parameters:,} ({count(found.parameters)})",
        "active a token": f"{found.active_parameters:,} ({count(found.active_parameters)})",
        "experts": f"{found.experts}, {found.experts_per_token} a token" if found.experts else "none (dense)",
        "layers": config.get("num_hidden_layers"),
        "hidden, vocabulary": f"{config.get('hidden_size')}, {config.get('vocab_size')}",
        "heads": f"{config.get('num_attention_heads')}, {config.get('num_key_value_heads')} of keys",
        "context": config.get("max_position_embeddings"),
        "dtype": found.dtype,
        "files": gib(weights) if weights else "no safetensors here",
        "full fine-tune": f"{gib(found.parameters * 16)} for weights, gradients and AdamW",
    }
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold cyan", justify="right")
    table.add_column()
    for label, value in rows.items():
        table.add_row(label, str(value))
    console.print(table)
