"""`jobscribe job`: commands to submit, inspect and control jobs, one module per command."""
