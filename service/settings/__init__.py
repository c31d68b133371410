"""All settings of the server processes: definitions, value parsers, and loading from file,
environment and command line.
"""
