"""The broker: pure decisions in core/, and the shell around them."""
