"""State of one command line: common options, supervisor connection, job names and crash reports."""
