"""What a container may try to get a device that it was not given, or to hinder the guard."""
