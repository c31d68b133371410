"""Engine: one sentence to be written."""
