"""Terminal input and output: messages, tables, progress, amounts and streams of job output."""
