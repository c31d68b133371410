"""`jobscribe install-units`: systemd units for this installation."""
