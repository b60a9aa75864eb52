"""The kernel's interfaces, one file each."""
