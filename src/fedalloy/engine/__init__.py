"""Engines carry messages between a method and its clients.

May import everything up to config.
"""
