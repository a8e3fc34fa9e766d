"""Deployment: an experiment at real sites, by Flower's SuperLink and SuperNodes, each site keeping its data."""
