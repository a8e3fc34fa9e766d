"""Checks of methods, machines and runs, and what hostile clients achieve.

May import everything up to report.
"""
