"""Commands that find faults in the user's own code."""
