"""Scripts for the environment of SGLang, run by path; they import nothing of the harness."""
