"""What every other package may use: names, checked options, trees of tensors, random streams and files.

Imports fedalloy.errors only.
"""
