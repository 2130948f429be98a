"""Parts of gpu_check.py and gpu_bundle.py."""
