"""Local training: the loop, losses, optimisers, differential privacy, and costs.

May import base, data and nets.
"""
