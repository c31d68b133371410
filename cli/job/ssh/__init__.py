"""`jobscribe job ssh`: OpenSSH from the user's machine into a task, through supervisor and relay."""
