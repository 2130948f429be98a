"""Parts of the LLaMA training example, which ``examples/train_llama.py`` combines."""
