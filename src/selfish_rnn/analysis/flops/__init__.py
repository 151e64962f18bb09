"""FLOPs in the paper's convention: of a model, of a training run, and the paper's own figures."""
