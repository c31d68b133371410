"""Shells in executions on this machine, and on the nodes of a cluster."""
