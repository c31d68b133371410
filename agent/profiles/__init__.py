"""Profiles of jobs: the recorder in their Python processes, and curves from the agent's samples."""
