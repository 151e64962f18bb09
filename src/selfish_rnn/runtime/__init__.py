"""Runtime: a model as a program that runs one step at a time, in Python, C and C++."""
