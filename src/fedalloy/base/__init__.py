"""Utilities for all other packages: names, checked options, trees of tensors, random streams and files.

Only imports fedalloy.errors.
"""
