"""Parts of the LLaMA training example; ``examples/train_llama.py`` puts them together."""
