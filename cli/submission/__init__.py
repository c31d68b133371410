"""Descriptions of runs on the command line: options, job files and plans."""
