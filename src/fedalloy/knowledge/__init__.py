"""Distillation and fusion: the equations that methods share.

May import everything up to federation.
"""
