"""Finished runs as tables, plots and one HTML page."""
