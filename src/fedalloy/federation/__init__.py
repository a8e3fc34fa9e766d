"""Clients, the server, messages and rounds: the types that methods are written in.

May import everything up to aggregation.
"""
