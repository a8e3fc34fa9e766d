"""Finished runs as tables, as pictures and as one HTML page."""
