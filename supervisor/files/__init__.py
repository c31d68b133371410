"""Users' files on the supervisor's machine: libraries, uploads, and removal of old run directories."""
