"""Shapes and rules of text that users write: job descriptions, and the parsers of JSON and YAML
files. Pure; no scheduling.
"""
