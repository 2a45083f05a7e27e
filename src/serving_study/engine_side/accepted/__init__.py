"""What the engines beside vLLM accept, each by its own word, asked by its interpreter (`facts.py` asks vLLM)."""
