"""A private supervisor for one client on this machine: its processes and its temporary root."""
