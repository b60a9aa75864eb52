"""gpuguard keeps the device permissions of GPU containers: sees the loss, mends it, names the writer."""

__version__ = "0.1.0"
