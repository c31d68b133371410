"""Simulation types: the plug-in contract and the apps that come along."""
