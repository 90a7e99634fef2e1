"""automoe upcycle."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from automoe.console import console, friendly


@friendly
def upcycle(
    model: Annotated[str, typer.Argument(help="Dense Llama, Mistral or Qwen3: folder or repository id.")],
    out: Annotated[Path, typer.Argument(help="Folder of the new model.")],
    experts: Annotated[int, typer.Option(min=1, help="Experts a layer.")] = 8,
    top_k: Annotated[int, typer.Option(min=1, help="Experts a token.")] = 2,
    noise: Annotated[
        float, typer.Option(min=0, help="Noise on each expert, as a share of its spread; 0: exact.")
    ] = 0.0,
    router_std: Annotated[float, typer.Option(min=0, help="Spread of the random router.")] = 0.02,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; unset: as the source.")
    ] = None,
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Turn a dense model into a Mixture of Experts that says exactly the same until it is trained."""
    from automoe.model_info import model_info
    from automoe.source import local_folder
    from automoe.upcycle import UpcycleConfig, upcycle

    if dtype not in (None, "float32", "bfloat16", "float16"):
        raise ValueError(f"[upcycle] dtype must be float32, bfloat16 or float16, got {dtype}")
    options = UpcycleConfig(
        local_folder(model), out, experts, top_k, noise, router_std, dtype=dtype, seed=seed
    )
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("tensors", total=None)
        upcycle(options, lambda done, total: progress.update(task, completed=done, total=total))
    info = model_info(out)
    exact = "exact copy" if noise == 0 else f"with noise {noise:g}"
    console.print(
        f"[bold]{out}[/]: {info.architecture}, {info.experts} experts, {info.experts_per_token} a token, "
        f"{info.parameters:,} parameters, {info.active_parameters:,} active; {exact}",
        soft_wrap=True,
    )
