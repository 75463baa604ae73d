"""Budgets of a grid: when it stops, and the limits of one job. Nothing heavy is imported here."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Budgets(BaseModel):
    """When to stop, and what a job may take."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    hours: float | None = Field(default=None, gt=0, description="after this no job starts; the same command goes on")
    job_minutes: float | None = Field(default=None, gt=0, description="a job that takes longer is ended and recorded")
    memory_gb: float | None = Field(
        default=None, gt=0, description="what a job needs: fewer workers, or asked of the cluster"
    )
