"""Slurm command lines, parsers for Slurm output, and batch scripts. Pure: `agent/batch` runs the
commands.
"""
