"""Parsers of JSON and YAML text into plain data with line numbers. They know nothing about the
meaning of the data.
"""
