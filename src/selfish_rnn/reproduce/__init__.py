"""The paper's tables, figures and claims as lists of runs, at several scales."""
