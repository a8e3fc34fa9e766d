"""How the server combines what clients send: weights, robust rules, the cache of last models.

May import base, data, nets and train.
"""
