"""Reproduce the papers: their tables, figures and claims, run at three scales, with a verdict on every claim."""

from __future__ import annotations
