"""What a user sees of an execution on this machine, besides its output: shells in it."""
