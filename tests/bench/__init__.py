"""What gpuguard costs and what it saves, measured on a real node: `python -m tests.bench`."""
