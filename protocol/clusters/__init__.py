"""Clusters: one sentence to be written."""
