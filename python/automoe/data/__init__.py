"""Data preparation: rows of any known format to prepared folders (docs/data.md)."""

from automoe.data.encode import Encoded, Encoder
from automoe.data.folder import PreparedFolder, PreparedWriter
from automoe.data.messages import RowError
from automoe.data.prepare import PrepareConfig, PrepareSummary, prepare
from automoe.data.template import ChatTemplate, TemplateError

__all__ = [
    "ChatTemplate",
    "Encoded",
    "Encoder",
    "PrepareConfig",
    "PrepareSummary",
    "PreparedFolder",
    "PreparedWriter",
    "RowError",
    "TemplateError",
    "prepare",
]
