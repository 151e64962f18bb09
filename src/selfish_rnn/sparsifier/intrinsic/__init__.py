from selfish_rnn.sparsifier.intrinsic.structures import ISS, IntrinsicSparseStructures
from selfish_rnn.sparsifier.intrinsic.units import DescribesUnits, UnitLayer, UnitPart, live_units, shrink

__all__ = ["ISS", "DescribesUnits", "IntrinsicSparseStructures", "UnitLayer", "UnitPart", "live_units", "shrink"]
