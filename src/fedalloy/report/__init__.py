"""Finished runs as tables, plots and one HTML page.

May import everything up to run.
"""
