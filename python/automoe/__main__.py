"""python -m automoe."""

from automoe.cli import app

app(prog_name="automoe")
