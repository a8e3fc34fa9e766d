"""Local training: the loop, losses, optimisers, differential privacy, and what it costs.

May import base, data and nets.
"""
