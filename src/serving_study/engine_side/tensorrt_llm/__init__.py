"""Scripts for the environment of TensorRT-LLM, run by path; they import nothing of the harness."""
