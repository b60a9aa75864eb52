"""The whole daemon on a whole node."""
