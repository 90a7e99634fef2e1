"""The record of a run: one self-contained page that opens without a network."""

from automoe.report.page import write_report

__all__ = ["write_report"]
