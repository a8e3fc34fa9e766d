"""Experiments: files and overrides, checked and built into a setting.

May import everything up to storage.
"""
