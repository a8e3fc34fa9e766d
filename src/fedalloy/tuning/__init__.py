"""Tune every method with the same budget, on validation shares, and compare the chosen settings on the test.

May import everything up to report.
"""
