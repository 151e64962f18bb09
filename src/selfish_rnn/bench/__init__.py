"""How fast and how small the engines are: ``selfish-rnn bench``."""
