"""Int8 weights of the engine: storage, operators, rounding."""
