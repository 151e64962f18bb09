"""The paper's tables, figures and claims as runs that anyone can make again, at several scales."""
