"""Stored results as a page, tables and figures, beside the numbers that the paper published.

records -> entries (means over seeds) -> tables, figures -> page, markdown, latex
"""

from megagp.report.files import write_figures, write_page, write_tables
from megagp.report.records import RecordError
from megagp.report.report import Report, build

__all__ = ["RecordError", "Report", "build", "write_figures", "write_page", "write_tables"]
