"""An imitation of NVIDIA's driver and container toolkit for nodes without a GPU, as far as device rules go.

Written after what the sources of nvidia-container-toolkit, libnvidia-container and the open kernel modules say.
"""
