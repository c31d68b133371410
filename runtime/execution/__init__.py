"""The folder of one execution: names and formats of its files, and the limit of its output."""
