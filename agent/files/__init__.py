"""Files of jobs that the agent serves: output, run directories, and library copies."""
