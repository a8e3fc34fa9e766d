"""Engines carry messages between a method and its clients."""
