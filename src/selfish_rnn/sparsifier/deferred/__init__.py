from selfish_rnn.sparsifier.deferred.tensor import deferred_init, is_deferred, make_deferred, start_at

__all__ = ["deferred_init", "is_deferred", "make_deferred", "start_at"]
