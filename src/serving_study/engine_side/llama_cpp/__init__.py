"""Scripts for the environment of llama.cpp, run by path; they import nothing of the harness."""
