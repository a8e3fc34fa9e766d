"""Networks: classifiers, generators, and which client has which.

May import base and data.
"""
