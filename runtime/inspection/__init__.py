"""Stacks and profiles of executions: the program that runs beside them, and how it is started."""
