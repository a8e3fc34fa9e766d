"""Networks: classifiers, generators, and their assignment to clients.

May import base and data.
"""
