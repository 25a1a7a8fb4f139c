"""A small Llama-style inference engine in PyTorch that keeps its KV cache in kvistd. See README.md."""
