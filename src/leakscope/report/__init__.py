"""A finished audit as a page, a summary and two machine formats, drawn from its folder alone.

Nothing here decides anything: `verdict` and `exit_code` are shown as the audit wrote them, in every format.
"""

from __future__ import annotations

from leakscope.report.folder import read, write
from leakscope.report.junit_xml import junit
from leakscope.report.page import render_html
from leakscope.report.sarif_log import sarif
from leakscope.report.summary import markdown

__all__ = ["junit", "markdown", "read", "render_html", "sarif", "write"]
