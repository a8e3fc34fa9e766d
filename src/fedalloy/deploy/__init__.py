"""Deployment: an experiment at real sites, with Flower's SuperLink and SuperNodes; each site keeps its data.

May import everything up to check.
"""
