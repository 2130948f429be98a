"""`bitsandbytes.nn`: embeddings whose weights get 32-bit state in any optimizer."""

from lowtide.embedding import Embedding, StableEmbedding

__all__ = ["Embedding", "StableEmbedding"]
