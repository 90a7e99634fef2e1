"""automoe generate."""

from pathlib import Path
from typing import Annotated

import typer

from automoe.console import console, friendly


@friendly
def generate(
    model: Annotated[str, typer.Argument(help="Model folder or repository id.")],
    prompt: Annotated[
        str | None, typer.Argument(help="What to say; without it, a chat line by line.")
    ] = None,
    raw: Annotated[
        bool, typer.Option(help="Continue the text as it stands, without the chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float, typer.Option(min=0, help="0: always the most likely token.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    seed: Annotated[int, typer.Option()] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    chat_template: Annotated[Path | None, typer.Option(help="Jinja file instead of the model's own.")] = None,
) -> None:
    """Answer a prompt, or chat."""
    from automoe.generate import Generator

    generator = Generator(model, device, chat_template, raw=raw)
    settings = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "seed": seed,
    }
    history = [{"role": "system", "content": system}] if system else []
    if prompt is not None:
        generator.answer(prompt, history, **settings)
        return
    console.print("[dim]an empty line ends the chat[/]")
    while text := console.input("[bold cyan]you[/] ").strip():
        history += [{"role": "user", "content": text}]
        reply = generator.answer(text, history[:-1], **settings)
        history += [{"role": "assistant", "content": reply}]
