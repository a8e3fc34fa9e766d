"""Runs, and comparisons of several runs.

May import everything up to engine.
"""
