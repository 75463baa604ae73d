"""What an audit hands back: its report and its pictures, shown in terminals and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from leakscope.core.reports import AuditReport
from leakscope.core.results import AttackResult


@dataclass(frozen=True)
class Audit:
    """A finished audit: the report, and the pictures that go with it."""

    report: AuditReport
    images: Mapping[str, Tensor]

    @property
    def verdict(self) -> str:
        return self.report.verdict.value

    @property
    def exit_code(self) -> int:
        return self.report.exit_code

    @property
    def results(self) -> tuple[AttackResult, ...]:
        return self.report.results

    def __repr__(self) -> str:
        return f"<Audit {self.verdict} at {self.report.evidence.level}: {self.report.sentence}>"

    def to_frame(self) -> Any:
        """One row per attack on a target, as a pandas DataFrame."""
        return self.report.to_frame()

    def summary(self) -> str:
        """Verdict, targets, floors, controls, flags and command, as Markdown."""
        from leakscope.report.summary import markdown

        return markdown(self.report)

    def plot(self) -> Any:
        """Leak against accuracy, one mark per target, as a matplotlib figure."""
        from leakscope.report.notebook import trade_off

        return trade_off(self.report)

    def _repr_html_(self) -> str:
        """What a notebook shows: verdict, one row per target, the worst pictures."""
        from leakscope.report.notebook import notebook_html

        return notebook_html(self.report, self._arrays)

    def show(self) -> Any:
        """The whole report, in a notebook."""
        from leakscope.report.page import render_html

        return _Html(render_html(self.report, self._arrays))

    @property
    def _arrays(self) -> dict[str, Any]:
        return {name: image.numpy() for name, image in self.images.items()}


@dataclass(frozen=True)
class _Html:
    """Shown by notebooks."""

    text: str

    def _repr_html_(self) -> str:
        return self.text
