"""Should these clients federate, and how? A look at their data, a short comparison, and one page of advice.

May import everything up to report.
"""
