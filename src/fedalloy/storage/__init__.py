"""Run folders: how records and checkpoints are written and read.

May import everything up to methods.
"""
