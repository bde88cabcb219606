"""A cluster elsewhere: its commands, shared folder, logs and progress over one SSH connection."""
