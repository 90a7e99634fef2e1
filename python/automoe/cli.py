"""The automoe command."""

import typer

from automoe.commands.data import app as data
from automoe.commands.doctor import doctor
from automoe.commands.finetune import finetune
from automoe.commands.generate import generate
from automoe.commands.info import info
from automoe.commands.upcycle import upcycle

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Fine-tune Hugging Face causal language models, Mixture of Experts first.",
)
app.command("finetune")(finetune)
app.add_typer(data, name="data")
app.command("generate")(generate)
app.command("info")(info)
app.command("upcycle")(upcycle)
app.command("doctor")(doctor)

if __name__ == "__main__":
    app()
