"""``python -m selfish_rnn`` is the command line."""

from selfish_rnn.cli import main

main()
